//! A consumer to which the broker delivers nothing although messages wait: seen where a channel failed without a word.

/// Checks without a delivery after which to ask whether messages wait.
const ASK_EVERY: u32 = 5;

/// The number of messages may be behind, so it counts only if it says so twice in a row.
const ENOUGH: u32 = 2;

/// What was seen since the last delivery, while the broker could have lent more.
#[derive(Default)]
pub(super) struct Quiet {
    checks: u32,
    waited: u32,
}

impl Quiet {
    /// Learns that nothing was delivered since the last check, and returns whether to ask if messages wait. Without room
    /// the broker owes nothing.
    pub(super) fn is_worth_asking(&mut self, has_room: bool) -> bool {
        if !has_room {
            *self = Self::default();
            return false;
        }
        self.checks += 1;
        self.checks.is_multiple_of(ASK_EVERY)
    }

    /// Learns how many messages wait, and returns whether the broker has forgotten the consumer.
    pub(super) fn is_forgotten(&mut self, waiting: u32) -> bool {
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
        (1..=100).find(|check| quiet.is_worth_asking(has_room(*check)) && quiet.is_forgotten(waiting(*check)))
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
