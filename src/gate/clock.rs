//! Redis's clock as this process knows it. An attempt carries the time by that clock after which it counts for nothing,
//! because a script call that was held up on its way may run long after its buyer has heard that the outcome is unknown.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::Millis;

/// The earliest time that it may be by Redis's clock. Replies keep it close to the true time, and reveal a clock that was
/// set back, as after a failover to another host.
pub(super) struct RedisClock {
    started: Instant,
    /// Redis's time at `started`, at the earliest.
    at_start: Mutex<Option<i64>>,
}

impl Default for RedisClock {
    fn default() -> Self {
        Self { started: Instant::now(), at_start: Mutex::default() }
    }
}

impl RedisClock {
    /// Redis reported the time `now` in the reply to a call that was sent at `sent` and has just been answered.
    pub(super) fn observe(&self, sent: Instant, now: Millis) {
        self.observe_reply(sent, Instant::now(), now);
    }

    fn observe_reply(&self, sent: Instant, received: Instant, now: Millis) {
        let earliest = now.0 - self.local(received) - 1;
        let latest = now.0 - self.local(sent) + 1;
        let mut known = self.at_start.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(match *known {
            // A reply that took long to arrive says less than an earlier one.
            Some(known) if known <= latest => known.max(earliest),
            _ => earliest,
        });
    }

    /// The time that it will be at `moment`, at the earliest. `None` before the first reply.
    pub(super) fn earliest(&self, moment: Instant) -> Option<Millis> {
        let known = *self.at_start.lock().unwrap_or_else(PoisonError::into_inner);
        known.map(|at_start| Millis(at_start + self.local(moment)))
    }

    /// Milliseconds of this process.
    fn local(&self, moment: Instant) -> i64 {
        let since = moment.saturating_duration_since(self.started);
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX / 2)
    }
}

/// One reading of Redis's clock, and what that clock shows at other times, by this process's monotonic clock. Says
/// nothing of a clock that is set, or of another Redis.
#[derive(Debug, Clone, Copy)]
pub struct ClockReading {
    read: Millis,
    sent: Instant,
    received: Instant,
}

/// A clock that is being corrected runs faster or slower by less than this part.
const SLEWED: u32 = 8;

impl ClockReading {
    /// Redis reported `read` in the reply to a call that was sent at `sent` and has just been answered.
    pub(super) fn received_now(read: Millis, sent: Instant) -> Self {
        Self { read, sent, received: Instant::now() }
    }

    /// The earliest time that Redis's clock can show at `moment`.
    pub fn earliest(&self, moment: Instant) -> Millis {
        let since = moment.saturating_duration_since(self.received);
        self.read.plus(since - since / SLEWED)
    }

    /// The latest.
    pub fn latest(&self, moment: Instant) -> Millis {
        let since = moment.saturating_duration_since(self.sent);
        // 2 ms, because both times are rounded down.
        self.read.plus(since + since / SLEWED).plus(Duration::from_millis(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_later_than_redis_says_and_follows_a_clock_that_is_set() {
        let clock = RedisClock::default();
        let at = |millis| clock.started + Duration::from_millis(millis);
        let earliest = |millis| clock.earliest(at(millis)).map(|time| time.0);
        assert_eq!(earliest(0), None);
        // Redis was at 5,000 somewhere in the 40 ms of the call.
        clock.observe_reply(at(0), at(40), Millis(5_000));
        assert_eq!(earliest(40), Some(4_999));
        // A quicker reply is closer to the truth: the first one had taken 30 ms to arrive.
        clock.observe_reply(at(99), at(100), Millis(5_090));
        assert_eq!(earliest(100), Some(5_089));
        // A slow one says less.
        clock.observe_reply(at(100), at(1_100), Millis(5_100));
        assert_eq!(earliest(1_100), Some(6_089));
        // The clock of another host is ten seconds behind, and then ahead.
        for now in [-3_910, 16_090] {
            clock.observe_reply(at(1_100), at(1_101), Millis(now));
            assert_eq!(earliest(1_101), Some(now - 1));
        }
    }

    #[test]
    fn a_reading_says_what_the_clock_can_show_later() {
        let started = Instant::now();
        let at = |millis| started + Duration::from_millis(millis);
        // Redis was at 5,000 somewhere in the 40 ms of the call.
        let clock = ClockReading { read: Millis(5_000), sent: at(0), received: at(40) };
        assert_eq!((clock.earliest(at(40)), clock.latest(at(40))), (Millis(5_000), Millis(5_047)));
        // It may have run slower or faster since.
        assert_eq!((clock.earliest(at(840)), clock.latest(at(800))), (Millis(5_700), Millis(5_902)));
        // Before the reply, nothing is known of how far it had come.
        assert_eq!(clock.earliest(at(20)), Millis(5_000));
    }
}
