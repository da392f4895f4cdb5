//! The lanes in which what waits apart may be tried: all but one, which is left to the others, because each try may wait for
//! a lock or for the broker. If there is only one lane, it rests after each try for as long as that took.

use tokio::time::Instant;

/// The tries under way.
pub(super) struct TryLanes {
    under_way: usize,
    /// When the last try began.
    began: Instant,
    /// With one lane, no other try before this time.
    rest_until: Instant,
}

impl TryLanes {
    /// None yet.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { under_way: 0, began: now, rest_until: now }
    }

    /// When something that is `due` may be tried in one of `lanes`. `None` if nothing is due, or while as many tries are under
    /// way as may be.
    pub(super) fn next(&self, lanes: usize, due: Option<Instant>) -> Option<Instant> {
        if self.under_way >= lanes.saturating_sub(1).max(1) {
            return None;
        }
        if lanes > 1 { due } else { Some(due?.max(self.rest_until)) }
    }

    /// A try begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.under_way += 1;
        self.began = now;
    }

    /// A try has ended.
    pub(super) fn end(&mut self, now: Instant) {
        self.under_way = self.under_way.saturating_sub(1);
        self.rest_until = now + (now - self.began);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_lane_is_left_to_the_others() {
        let now = Instant::now();
        let (mut tries, due) = (TryLanes::new(), Some(now));
        assert_eq!((tries.next(3, None), tries.next(3, due)), (None, due));
        tries.begin(now);
        assert_eq!((tries.next(3, due), tries.next(2, due), tries.next(1, due)), (due, None, None));
        tries.begin(now);
        assert_eq!(tries.next(3, due), None);
        tries.end(now);
        assert_eq!(tries.next(3, due), due);
    }

    #[test]
    fn the_only_lane_rests_for_as_long_as_a_try_took() {
        let (mut tries, begin, took) = (TryLanes::new(), Instant::now(), Duration::from_secs(3));
        tries.begin(begin);
        tries.end(begin + took);
        assert_eq!(tries.next(1, Some(begin)), Some(begin + 2 * took));
        assert_eq!(tries.next(2, Some(begin)), Some(begin));
    }
}
