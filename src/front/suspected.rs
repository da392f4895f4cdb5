//! Which addresses send tokens, or signatures of callbacks, that are refused again and again. To verify an EdDSA token takes
//! some 50 µs, and a signature over a large body more, so a flood of forged ones would take the time in which buyers are
//! served. From a suspected address, signatures and tokens that were not verified before share a small budget. Tokens that
//! are known to be valid, and everybody else's, are verified as ever. So a stranger behind the same address as a buyer only
//! disturbs them while a flood uses up the budget.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An address is suspected after so many refusals with less than [`SUSPECTED_FOR`] between one and the next.
const MOST_REFUSED: u32 = 10;
const SUSPECTED_FOR: Duration = Duration::from_secs(10);

/// Addresses that are remembered. Others are not suspected.
const MOST_ADDRESSES: usize = 100_000;

/// Addresses are forgotten this often at most, or each further one would look at all of them.
const FORGET_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct SuspectedAddresses {
    known: Mutex<Known>,
    /// Whether there is any, so that nobody waits for the lock where nothing is refused.
    any: AtomicBool,
}

#[derive(Default)]
struct Known {
    by_address: HashMap<IpAddr, Refused>,
    /// When those that are not recent were last forgotten.
    forgotten: Option<Instant>,
}

struct Refused {
    count: u32,
    last: Instant,
}

impl SuspectedAddresses {
    /// Counts a refused token or signature.
    pub(super) fn count(&self, address: IpAddr, now: Instant) {
        let mut known = self.lock();
        let is_known = known.by_address.contains_key(&address);
        if known.by_address.len() >= MOST_ADDRESSES && !is_known {
            known.forget(now, FORGET_EVERY);
            if known.by_address.len() >= MOST_ADDRESSES {
                return;
            }
        }
        let refused = known.by_address.entry(address).or_insert(Refused { count: 0, last: now });
        let before = if refused.is_recent(now) { refused.count } else { 0 };
        *refused = Refused { count: before.saturating_add(1), last: now };
        self.any.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_suspected(&self, address: IpAddr, now: Instant) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut known = self.lock();
        // Also of addresses that do not come back.
        known.forget(now, SUSPECTED_FOR);
        self.any.store(!known.by_address.is_empty(), Ordering::Relaxed);
        let refused = known.by_address.get(&address).filter(|refused| refused.is_recent(now));
        refused.is_some_and(|refused| refused.count >= MOST_REFUSED)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Forgets addresses that are not recent, unless that was done within `every`.
    fn forget(&mut self, now: Instant, every: Duration) {
        let is_due = |last: Instant| now.saturating_duration_since(last) >= every;
        if self.forgotten.is_none_or(is_due) {
            self.forgotten = Some(now);
            self.by_address.retain(|_, refused| refused.is_recent(now));
        }
    }
}

impl Refused {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < SUSPECTED_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(nth: u32) -> IpAddr {
        IpAddr::V4(nth.into())
    }

    #[test]
    fn an_address_is_suspected_after_some_refusals_and_for_a_while() {
        let (addresses, begin) = (SuspectedAddresses::default(), Instant::now());
        for _ in 1..MOST_REFUSED {
            addresses.count(address(1), begin);
        }
        assert!(!addresses.is_suspected(address(1), begin));
        addresses.count(address(1), begin);
        assert!(addresses.is_suspected(address(1), begin) && !addresses.is_suspected(address(2), begin));
        let later = begin + SUSPECTED_FOR;
        assert!(
            !addresses.is_suspected(address(1), later) && addresses.lock().by_address.is_empty(),
            "nothing is kept"
        );
        addresses.count(address(1), later);
        assert!(!addresses.is_suspected(address(1), later), "it counts from the beginning");
    }

    #[test]
    fn a_bound_of_addresses_is_remembered() {
        let (addresses, now) = (SuspectedAddresses::default(), Instant::now());
        for nth in 0..u32::try_from(MOST_ADDRESSES).expect("fits") + 9 {
            addresses.count(address(nth), now);
        }
        assert_eq!(addresses.lock().by_address.len(), MOST_ADDRESSES);
        addresses.count(address(u32::MAX), now + SUSPECTED_FOR);
        assert_eq!(addresses.lock().by_address.len(), 1, "what is old makes room");
    }
}
