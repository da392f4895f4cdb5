//! A rate per key, such as an address or a buyer, in the memory of one front.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::domain::{Limited, Rate, RateOf};

/// Requests between two removals of idle keys.
const TIDY_EVERY: u64 = 50_000;

pub(super) struct KeyedLimit<K: Clone + Eq + Hash> {
    limiter: DefaultKeyedRateLimiter<K>,
    clock: DefaultClock,
    pub(super) rate: Rate,
    of: RateOf,
    seen: AtomicU64,
}

/// The same rate for a limiter. `None` for a rate of nothing, which no configuration has.
pub(super) fn quota(rate: Rate) -> Option<Quota> {
    let burst = NonZeroU32::new(rate.count())?;
    let every = Duration::from_secs(rate.seconds().into()) / rate.count();
    Some(Quota::with_period(every)?.allow_burst(burst))
}

impl<K: Clone + Eq + Hash> KeyedLimit<K> {
    /// `None` for a rate of nothing, which no configuration has.
    pub(super) fn new(rate: Rate, of: RateOf) -> Option<Self> {
        Some(Self {
            limiter: RateLimiter::keyed(quota(rate)?),
            clock: DefaultClock::default(),
            rate,
            of,
            seen: AtomicU64::new(0),
        })
    }

    /// Counts a request of `key`, or refuses it.
    pub(super) fn check(&self, key: &K) -> Result<(), Limited> {
        if self.seen.fetch_add(1, Ordering::Relaxed) % TIDY_EVERY == TIDY_EVERY - 1 {
            self.limiter.retain_recent();
        }
        self.limiter.check_key(key).map_err(|not_until| Limited {
            of: self.of,
            rate: self.rate,
            retry_after: not_until.wait_time_from(self.clock.now()),
        })
    }
}
