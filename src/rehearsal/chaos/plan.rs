//! The plan of a chaos drill, and of its crowd.

use std::path::PathBuf;
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
    /// The number of orders to be accepted, which is how many there are units for. There are 5 % more buyers.
    pub orders: i64,
    /// How many sales they belong to: at most [`MOST_SALES`].
    pub sales: usize,
    /// How long the attack lasts.
    pub lasts: Duration,
    /// The database under attack.
    pub database: Kind,
    /// Whether buyers pay and cancel, orders expire, and the sale is restocked.
    pub follow_up: bool,
    /// A build that the processes begin as. In the middle they become this one.
    pub other: Option<PathBuf>,
    /// Pairs of `section.key=value` for the fronts and workers.
    pub settings: Vec<String>,
}

/// The most sales of a chaos drill.
pub const MOST_SALES: usize = 3;

/// A sale of a chaos drill.
pub(super) struct PlannedSale {
    /// Its crowd.
    pub(super) plan: Plan,
    /// How long after the beginning of the attack it is created.
    pub(super) opens_after: Duration,
}

/// The share of each sale in the orders, in percent, by how many sales there are.
const SHARES: [&[i64]; MOST_SALES] = [&[100], &[70, 30], &[60, 25, 15]];

impl ChaosPlan {
    /// Longer than the outage of a single server, so that most buyers who want to pay can do so; shorter in a short
    /// drill.
    pub(super) fn pay_within_s(&self) -> u32 {
        u32::try_from(self.lasts.as_secs() / 4).unwrap_or(u32::MAX).clamp(4, 20)
    }

    /// The sales. The first is on sale all the time. The second is opened and closed under attack; its buyers may buy again,
    /// and its operator changes more than the stock. The buyers of the third neither pay nor cancel. The second has two items
    /// and the third three, of which each buyer may have as many units.
    pub(super) fn planned_sales(&self) -> Vec<PlannedSale> {
        let shares = SHARES[self.sales.clamp(1, MOST_SALES) - 1];
        let every = Duration::from_secs(3);
        let sale = |nth: usize, share: i64| {
            let orders = self.orders * share / 100;
            match nth {
                0 => PlannedSale {
                    plan: Plan {
                        follow_up: self.follow_up(false),
                        steering: self.follow_up.then_some(Steering::Restocks { every }),
                        ..crowd("chaos", orders, 1, self.lasts)
                    },
                    opens_after: Duration::ZERO,
                },
                1 => PlannedSale {
                    plan: Plan {
                        // Later than the deadline of an order that was not paid.
                        clicks: Clicks::SomeComeBack(Duration::from_secs(u64::from(self.pay_within_s()) + 5)),
                        follow_up: self.follow_up(true),
                        steering: self.follow_up.then_some(Steering::Everything { every }),
                        ..crowd("chaos-again", orders, 2, self.lasts * 3 / 5)
                    },
                    opens_after: self.lasts / 5,
                },
                _ => PlannedSale {
                    plan: crowd("chaos-plain", orders, 3, self.lasts),
                    opens_after: Duration::ZERO,
                },
            }
        };
        shares.iter().enumerate().map(|(nth, share)| sale(nth, *share)).collect()
    }

    fn follow_up(&self, rebuy: bool) -> Option<FollowUp> {
        self.follow_up.then_some(FollowUp {
            pay_within_s: self.pay_within_s(),
            rebuy,
            pay: 60,
            pay_late: 5,
            cancel: 15,
            repeat_for: Duration::from_secs(120),
        })
    }
}

/// 5 % more buyers than there are units for, who come over this time, to so many items. Each buyer may have as many units
/// and asks for one to so many, so their mean is half of one more.
fn crowd(name: &'static str, orders: i64, items: u32, over: Duration) -> Plan {
    let buyers = u32::try_from(orders + orders / 20).unwrap_or(u32::MAX);
    Plan {
        name,
        units: orders * i64::from(items + 1) / 2,
        items,
        limit: items,
        buyers,
        arrival: Arrival::PerSecond(f64::from(buyers) / over.as_secs_f64()),
        connections: 512,
        clicks: Clicks::SomeTwice,
        repeat_for: Duration::from_secs(120),
        under_fire: true,
        settle_within: Duration::from_secs(120),
        follow_up: None,
        steering: None,
    }
}
