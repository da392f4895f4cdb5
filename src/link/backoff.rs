//! The delay before the next retry: it doubles from 100 ms to 2 s, and half of it is random, so that a hundred
//! processes do not reconnect in the same instant. Retries never end, because somebody would have
//! to notice a link that gives up.

use std::time::Duration;

use rand::RngExt as _;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

/// The delays between the retries of one link.
#[derive(Debug, Default)]
pub struct Backoff {
    tries: u32,
}

impl Backoff {
    /// The delay before the next retry, random between half and all of the doubled time.
    pub fn delay(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.tries.min(10)).min(LONGEST);
        self.tries += 1;
        whole.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// Starts again with the short delay. Call it after a success.
    pub fn reset(&mut self) {
        self.tries = 0;
    }

    /// Retries since the last success.
    pub fn tries(&self) -> u32 {
        self.tries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_stay_bounded_and_restart_after_a_reset() {
        let mut backoff = Backoff::default();
        let first = backoff.delay();
        assert!(first >= FIRST / 2 && first <= FIRST, "{first:?}");
        for _ in 0..1_000 {
            assert!(backoff.delay() <= LONGEST);
        }
        assert!(backoff.delay() >= LONGEST / 2);
        backoff.reset();
        assert!(backoff.delay() <= FIRST);
    }
}
