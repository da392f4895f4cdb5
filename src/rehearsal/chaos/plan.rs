//! The plan of a chaos drill, and of its crowd.

use std::time::Duration;

use crate::rehearsal::drill::{Arrival, Clicks, FollowUp, Plan, Steering};
use crate::rehearsal::servers::Kind;

/// The plan of a chaos drill.
#[derive(Debug, Clone)]
pub struct ChaosPlan {
    /// The seed of the plan of faults.
    pub seed: u64,
    /// How many faults to inflict.
    pub faults: usize,
    /// How many of them lose data.
    pub losses: usize,
    /// Units on sale, which is also the number of orders to be accepted. There are 5 % more buyers.
    pub orders: i64,
    /// How long the attack lasts.
    pub lasts: Duration,
    /// The database under attack.
    pub database: Kind,
    /// Whether buyers pay and cancel, orders expire, and the sale is restocked.
    pub follow_up: bool,
    /// Pairs of `section.key=value` for the fronts and workers.
    pub settings: Vec<String>,
}

impl ChaosPlan {
    /// Longer than the outage of a single server, so that most buyers who want to pay can do so; shorter in a short
    /// drill.
    pub(super) fn pay_within_s(&self) -> u32 {
        u32::try_from(self.lasts.as_secs() / 4).unwrap_or(u32::MAX).clamp(4, 20)
    }

    pub(super) fn crowd(&self) -> Plan {
        let buyers = u32::try_from(self.orders + self.orders / 20).unwrap_or(u32::MAX);
        Plan {
            name: "chaos",
            units: self.orders,
            buyers,
            arrival: Arrival::PerSecond(f64::from(buyers) / self.lasts.as_secs_f64()),
            connections: 512,
            clicks: Clicks::SomeTwice,
            repeat_for: Duration::from_secs(120),
            repeat_paused: true,
            settle_within: Duration::from_secs(120),
            // Without rebuy, a click with another key is answered with the same order for ever.
            follow_up: self.follow_up.then_some(FollowUp {
                pay_within_s: self.pay_within_s(),
                rebuy: false,
                pay: 60,
                pay_late: 5,
                cancel: 15,
                repeat_for: Duration::from_secs(120),
            }),
            steering: self.follow_up.then_some(Steering::Restocks { every: Duration::from_secs(3) }),
        }
    }
}
