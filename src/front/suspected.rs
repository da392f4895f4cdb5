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

#[derive(Default)]
pub(super) struct SuspectedAddresses {
    by_address: Mutex<HashMap<IpAddr, Refused>>,
    /// Whether there is any, so that nobody waits for the lock where nothing is refused.
    any: AtomicBool,
}

struct Refused {
    count: u32,
    last: Instant,
}

impl SuspectedAddresses {
    /// Counts a refused token or signature.
    pub(super) fn count(&self, address: IpAddr, now: Instant) {
        let mut all = self.lock();
        if all.len() >= MOST_ADDRESSES && !all.contains_key(&address) {
            all.retain(|_, refused| refused.is_recent(now));
            if all.len() >= MOST_ADDRESSES {
                return;
            }
        }
        let refused = all.entry(address).or_insert(Refused { count: 0, last: now });
        let before = if refused.is_recent(now) { refused.count } else { 0 };
        *refused = Refused { count: before.saturating_add(1), last: now };
        self.any.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_suspected(&self, address: IpAddr, now: Instant) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut all = self.lock();
        match all.get(&address) {
            Some(refused) if refused.is_recent(now) => refused.count >= MOST_REFUSED,
            Some(_) => {
                all.remove(&address);
                self.any.store(!all.is_empty(), Ordering::Relaxed);
                false
            }
            None => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Refused>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert!(!addresses.is_suspected(address(1), later) && addresses.lock().is_empty(), "nothing is kept");
        addresses.count(address(1), later);
        assert!(!addresses.is_suspected(address(1), later), "it counts from the beginning");
    }

    #[test]
    fn a_bound_of_addresses_is_remembered() {
        let (addresses, now) = (SuspectedAddresses::default(), Instant::now());
        for nth in 0..u32::try_from(MOST_ADDRESSES).expect("fits") + 9 {
            addresses.count(address(nth), now);
        }
        assert_eq!(addresses.lock().len(), MOST_ADDRESSES);
        addresses.count(address(u32::MAX), now + SUSPECTED_FOR);
        assert_eq!(addresses.lock().len(), 1, "what is old makes room");
    }
}
