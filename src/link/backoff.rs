//! How long to wait before the next try: doubling from 100 ms to 2 s, with half of it random, so
//! that a hundred processes do not return in the same instant. There is no last try: a link that
//! gives up has to be noticed by a person.

use std::time::Duration;

use rand::RngExt as _;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Backoff {
    tries: u32,
}

impl Backoff {
    /// The delay before the next try, between half and the whole of the doubled time.
    pub fn delay(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.tries.min(10)).min(LONGEST);
        self.tries += 1;
        whole.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// After a success: the next trouble begins with a short delay again.
    pub fn reset(&mut self) {
        self.tries = 0;
    }

    pub fn tries(&self) -> u32 {
        self.tries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_stay_bounded_and_begin_anew() {
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
