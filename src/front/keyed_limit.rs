//! A rate per key, such as an address or a buyer, in the memory of one front.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::codes::RATE_LIMITED;
use super::problem::Problem;
use crate::domain::{Limited, Rate, RateOf};

/// Requests between two removals of idle keys.
const TIDY_EVERY: u64 = 50_000;

/// 429, with the limit and the time to retry.
pub(super) fn rate_limited(limited: &Limited) -> Box<Problem> {
    let Limited { of, rate, retry_after } = limited;
    let whose = of.as_str();
    let why = match of {
        RateOf::EndedOrders => format!("{} of your orders have ended in {} s", rate.count(), rate.seconds()),
        RateOf::Address | RateOf::User | RateOf::Sale => format!("more than {rate} per {whose}"),
    };
    let seconds = u64::try_from(retry_after.as_millis().div_ceil(1000)).unwrap_or(1).max(1);
    Problem::new(RATE_LIMITED, format!("{why}; this attempt took nothing"))
        .reason(whose)
        .with("limit", rate.to_string())
        .retry_after(seconds)
        .header("ratelimit-policy", format!("\"{whose}\";q={};w={}", rate.count(), rate.seconds()))
        .header("ratelimit", format!("\"{whose}\";r=0;t={seconds}"))
}

/// A rate per key, or none, which may change while requests are counted.
pub(super) struct ChangeableLimit<K: Clone + Eq + Hash> {
    of: RateOf,
    limit: RwLock<Option<KeyedLimit<K>>>,
}

impl<K: Clone + Eq + Hash> ChangeableLimit<K> {
    /// `None` for no limit.
    pub(super) fn new(rate: Option<Rate>, of: RateOf) -> Self {
        Self { of, limit: RwLock::new(rate.and_then(|rate| KeyedLimit::new(rate, of))) }
    }

    /// Another rate begins with nothing counted; the same one goes on.
    pub(super) fn change(&self, rate: Option<Rate>) {
        let mut limit = self.limit.write().unwrap_or_else(PoisonError::into_inner);
        if limit.as_ref().map(|limit| limit.rate) != rate {
            *limit = rate.and_then(|rate| KeyedLimit::new(rate, self.of));
        }
    }

    /// Whether there is a limit.
    pub(super) fn is_set(&self) -> bool {
        self.limit.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Counts a request of `key`, or refuses it.
    pub(super) fn check(&self, key: &K) -> Result<(), Limited> {
        let limit = self.limit.read().unwrap_or_else(PoisonError::into_inner);
        limit.as_ref().map_or(Ok(()), |limit| limit.check(key))
    }
}

struct KeyedLimit<K: Clone + Eq + Hash> {
    limiter: DefaultKeyedRateLimiter<K>,
    clock: DefaultClock,
    rate: Rate,
    of: RateOf,
    seen: AtomicU64,
}

/// The same rate for a limiter. `None` for a rate of nothing, which no configuration has.
fn quota(rate: Rate) -> Option<Quota> {
    let burst = NonZeroU32::new(rate.count())?;
    let every = Duration::from_secs(rate.seconds().into()) / rate.count();
    Some(Quota::with_period(every)?.allow_burst(burst))
}

impl<K: Clone + Eq + Hash> KeyedLimit<K> {
    /// `None` for a rate of nothing, which no configuration has.
    fn new(rate: Rate, of: RateOf) -> Option<Self> {
        Some(Self {
            limiter: RateLimiter::keyed(quota(rate)?),
            clock: DefaultClock::default(),
            rate,
            of,
            seen: AtomicU64::new(0),
        })
    }

    fn check(&self, key: &K) -> Result<(), Limited> {
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
