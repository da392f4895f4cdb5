//! What an operator may change in a front that runs: its rates, and what it refuses to spare the servers.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::codes::{OVERLOADED, READ_ONLY, STATUS_UNAVAILABLE};
use super::keyed_limit::{ChangeableLimit, rate_limited};
use super::problem::{Answered, Problem};

use crate::domain::{Rate, RateOf, UserId};

/// Steps through the hundred places of a percentage so that neighbours are far apart: 37 and 100 have no common divisor.
const STEP: u32 = 37;

/// The values of these settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveFrontValues {
    /// Requests per address; `None` for no limit.
    pub address_rate: Option<Rate>,
    /// Tokens of all suspected addresses, and callbacks of each, that are verified; `None` for no limit. Has no effect
    /// without `address_rate`.
    pub suspected_rate: Option<Rate>,
    /// What one buyer may read and cancel; `None` for no limit. Orders have limits in the sale's terms.
    pub buyer_rate: Option<Rate>,
    /// Refuses orders and cancellations.
    pub read_only: bool,
    /// Refuses so many of a hundred readings.
    pub shed_reads_percent: u32,
}

/// The settings in force. Requests read them, and the process changes them.
pub struct LiveFront {
    pub(super) address: ChangeableLimit<IpAddr>,
    /// Tokens of all suspected addresses together.
    pub(super) suspected: ChangeableLimit<()>,
    /// Callbacks of each suspected address. Not of all together, or a stranger could keep a provider out that was refused for
    /// a while, such as while its secret was wrong.
    pub(super) suspected_callbacks: ChangeableLimit<IpAddr>,
    buyer: ChangeableLimit<UserId>,
    read_only: AtomicBool,
    is_full: AtomicBool,
    shed_percent: AtomicU32,
    /// Counts readings.
    readings: AtomicU32,
}

impl LiveFront {
    /// A front with these values, and memory to spare.
    pub fn new(values: &LiveFrontValues) -> Self {
        Self {
            address: ChangeableLimit::new(values.address_rate, RateOf::Address),
            suspected: ChangeableLimit::new(values.suspected_rate, RateOf::Address),
            suspected_callbacks: ChangeableLimit::new(values.suspected_rate, RateOf::Address),
            buyer: ChangeableLimit::new(values.buyer_rate, RateOf::User),
            read_only: AtomicBool::new(values.read_only),
            is_full: AtomicBool::new(false),
            shed_percent: AtomicU32::new(values.shed_reads_percent),
            readings: AtomicU32::new(0),
        }
    }

    /// On return, requests that arrive are answered by these values.
    pub fn change(&self, values: &LiveFrontValues) {
        self.address.change(values.address_rate);
        self.suspected.change(values.suspected_rate);
        self.suspected_callbacks.change(values.suspected_rate);
        self.buyer.change(values.buyer_rate);
        self.read_only.store(values.read_only, Ordering::Relaxed);
        self.shed_percent.store(values.shed_reads_percent, Ordering::Relaxed);
    }

    /// Whether orders are refused because this process has taken the memory that it may take.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Refuses what changes an order, or makes one, while the front is read-only.
    pub(super) fn may_change(&self) -> Answered<()> {
        if self.read_only.load(Ordering::Relaxed) {
            let detail = "orders are neither taken nor cancelled now; this attempt took nothing";
            return Err(Problem::new(READ_ONLY, detail).retry_after(10));
        }
        Ok(())
    }

    /// Refuses an order while the front is read-only or short of memory.
    pub(super) fn may_order(&self) -> Answered<()> {
        self.may_change()?;
        if self.is_full.load(Ordering::Relaxed) {
            let detail = "this front is short of memory; this attempt took nothing";
            return Err(Problem::new(OVERLOADED, detail).reason("memory").retry_after(2));
        }
        Ok(())
    }

    /// Refuses a share of all readings.
    pub(super) fn may_read(&self) -> Answered<()> {
        let percent = self.shed_percent.load(Ordering::Relaxed);
        if percent > 0 && self.readings.fetch_add(STEP, Ordering::Relaxed) % 100 < percent {
            let detail = "a part of all readings is refused now, to spare the servers";
            return Err(Problem::new(STATUS_UNAVAILABLE, detail).reason("reads_shed").retry_after(5));
        }
        Ok(())
    }

    /// Counts a reading or a cancellation of the buyer, or refuses it.
    pub(super) fn within_rate(&self, user: &UserId) -> Answered<()> {
        self.buyer.check(user).map_err(|limited| rate_limited(&limited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(front: &LiveFront, count: u32) -> usize {
        (0..count).filter(|_| front.may_read().is_err()).count()
    }

    #[test]
    fn the_share_of_readings_that_is_set_is_refused() {
        for percent in [0, 1, 50, 99, 100] {
            let front = LiveFront::new(&LiveFrontValues::default());
            front.change(&LiveFrontValues { shed_reads_percent: percent, ..LiveFrontValues::default() });
            assert_eq!(refused(&front, 1_000), 10 * percent as usize, "{percent} %");
        }
        let front = LiveFront::new(&LiveFrontValues { shed_reads_percent: 30, ..LiveFrontValues::default() });
        assert!((2..=4).contains(&refused(&front, 10)), "they are spread");
    }

    #[test]
    fn a_rate_that_changes_counts_afresh_and_one_that_stays_goes_on() {
        let rate = |text: &str| Some(text.parse().expect("a rate"));
        let of = |buyer_rate| LiveFrontValues { buyer_rate, ..LiveFrontValues::default() };
        let ada: UserId = "ada".parse().expect("a name");
        let front = LiveFront::new(&of(rate("1/60s")));
        assert!(front.within_rate(&ada).is_ok() && front.within_rate(&ada).is_err());
        front.change(&of(rate("1/60s")));
        assert!(front.within_rate(&ada).is_err(), "the same rate");
        front.change(&of(rate("2/60s")));
        assert!(front.within_rate(&ada).is_ok(), "another rate");
        front.change(&of(None));
        assert!((0..100).all(|_| front.within_rate(&ada).is_ok()), "no rate");
    }
}
