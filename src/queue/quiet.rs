//! A consumer to which the broker delivers nothing although messages wait: seen where a channel failed without a word.

use futures_util::FutureExt as _;
use lapin::Channel;
use tokio::task::JoinHandle;

use super::link::within;
use super::{QueueError, QueueSettings, topology};

/// Checks without a delivery after which to ask whether messages wait.
const ASK_EVERY: u32 = 5;

/// The number of messages may be behind, so it counts only if it says so twice in a row.
const ENOUGH: u32 = 2;

/// What was seen since the last delivery, while the broker could have lent more.
#[derive(Default)]
pub(super) struct Quiet {
    checks: u32,
    waited: u32,
    /// The question whether messages wait, under way. A task of its own, because the caller may stop waiting for a delivery
    /// many times before it is answered.
    asking: Option<JoinHandle<Result<u32, QueueError>>>,
}

impl Quiet {
    /// Whether the broker delivers nothing although messages wait and it may lend more. Called about once a second, and
    /// waits for nothing: the answer to a question counts at a later check.
    pub(super) fn is_forgotten(
        &mut self,
        channel: &Channel,
        settings: &QueueSettings,
        has_room: bool,
    ) -> bool {
        if let Some(asking) = &mut self.asking {
            let Some(answer) = asking.now_or_never() else { return false };
            self.asking = None;
            // A link on which even this fails is useless.
            return !matches!(answer, Ok(Ok(waiting)) if !self.is_proved_by(waiting));
        }
        if self.is_worth_asking(has_room) {
            let (channel, settings) = (channel.clone(), settings.clone());
            self.asking = Some(tokio::spawn(async move {
                within(settings.timeout, topology::waiting(&channel, &settings)).await
            }));
        }
        false
    }

    /// Learns that nothing was delivered since the last check, and returns whether to ask if messages wait. Without room
    /// the broker owes nothing.
    fn is_worth_asking(&mut self, has_room: bool) -> bool {
        if !has_room {
            *self = Self::default();
            return false;
        }
        self.checks += 1;
        self.checks.is_multiple_of(ASK_EVERY)
    }

    /// Learns how many messages wait, and returns whether the broker has forgotten the consumer.
    fn is_proved_by(&mut self, waiting: u32) -> bool {
        if waiting == 0 {
            *self = Self::default();
            return false;
        }
        self.waited += 1;
        self.waited >= ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many checks it takes until the consumer counts as forgotten, of a hundred.
    fn forgotten_after(has_room: impl Fn(u32) -> bool, waiting: impl Fn(u32) -> u32) -> Option<u32> {
        let mut quiet = Quiet::default();
        (1..=100).find(|check| quiet.is_worth_asking(has_room(*check)) && quiet.is_proved_by(waiting(*check)))
    }

    #[test]
    fn only_a_consumer_with_room_for_which_messages_keep_waiting_is_forgotten() {
        assert_eq!(forgotten_after(|_| true, |_| 3), Some(10));
        assert_eq!(forgotten_after(|_| true, |_| 0), None);
        assert_eq!(forgotten_after(|_| false, |_| 3), None);
        assert_eq!(forgotten_after(|check| check % 9 > 0, |_| 3), None, "a worker that is full now and then");
        assert_eq!(
            forgotten_after(|_| true, |check| check / 5 % 2),
            None,
            "a count that is behind now and then"
        );
    }
}
