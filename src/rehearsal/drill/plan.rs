//! Who clicks when, and on what. The presets are never smaller than this project's founding load tests.

use std::time::Duration;

use rand::RngExt as _;

use super::items::{Wanted, sku};
use super::operator::Steering;

/// When the clicks arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrival {
    /// All at the same instant.
    AtOnce,
    /// At random times, with this average rate per second: a Poisson process, which models independent people.
    PerSecond(f64),
}

/// The named plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Twice as many buyers as units, all at once. Exactly the stock must be sold.
    Oversell,
    /// Two users click ten times at once: one with a single key, one with ten keys.
    Duplicate,
    /// Thousands of requests a second. Everyone must be answered, and quickly.
    Rush,
    /// Half of the buyers never pay. New buyers come until every unit is paid for.
    Returns,
    /// The demonstration: forty times as many buyers as units; some of them click twice.
    Demo,
}

impl Preset {
    /// The preset's plan, which the caller may change.
    pub fn plan(self) -> Plan {
        let plan = |name, units, buyers, arrival| Plan {
            name,
            units,
            items: 1,
            limit: 1,
            buyers,
            arrival,
            connections: 256,
            clicks: Clicks::Once,
            repeat_for: Duration::from_secs(3),
            under_fire: false,
            settle_within: Duration::from_secs(120),
            follow_up: None,
            steering: None,
        };
        match self {
            Self::Oversell => plan("oversell", 1_000, 2_000, Arrival::AtOnce),
            Self::Duplicate => Plan { clicks: Clicks::TenTimes, ..plan("duplicate", 10, 2, Arrival::AtOnce) },
            Self::Rush => plan("rush", 10_000, 50_000, Arrival::PerSecond(5_000.0)),
            Self::Returns => Plan {
                connections: 64,
                repeat_for: Duration::from_secs(600),
                follow_up: Some(FollowUp {
                    pay_within_s: 5,
                    rebuy: true,
                    pay: 45,
                    pay_late: 5,
                    cancel: 5,
                    repeat_for: Duration::from_secs(60),
                }),
                ..plan("returns", 10_000, 1, Arrival::AtOnce)
            },
            Self::Demo => {
                Plan { clicks: Clicks::SomeTwice, ..plan("demo", 500, 20_000, Arrival::PerSecond(4_000.0)) }
            }
        }
    }
}

/// How often each buyer clicks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clicks {
    /// Every buyer once.
    Once,
    /// Every fourth buyer clicks again with the same key, every tenth with a new one.
    SomeTwice,
    /// The same, and every fifth buyer comes back this much later and clicks with a new key.
    SomeComeBack(Duration),
    /// The first buyer ten times with one key, the second ten times with ten keys.
    TenTimes,
}

/// The plan of a drill.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The name of the drill, which is also the prefix of its sale's id.
    pub name: &'static str,
    /// Units on sale, divided among the items.
    pub units: i64,
    /// How many items the sale has.
    pub items: u32,
    /// How many units a buyer may have. Buyers ask for one to so many.
    pub limit: u32,
    /// Buyers, each with their own token.
    pub buyers: u32,
    /// When the buyers first click.
    pub arrival: Arrival,
    /// Connections of the whole crowd. A click waits while all of them are busy, and the wait counts as latency.
    pub connections: usize,
    /// How often each buyer clicks.
    pub clicks: Clicks,
    /// How long a buyer repeats a click with the same key while its outcome is unknown.
    pub repeat_for: Duration,
    /// Whether servers fail meanwhile. Buyers then also repeat a click that hears `sale_paused`, because a sale is paused
    /// while its gate is rebuilt, and the sale's creation and opening are repeated.
    pub under_fire: bool,
    /// How long orders may take to end after the last click. Later ones count as unfinished.
    pub settle_within: Duration,
    /// What buyers do with their orders; `None` if they do nothing.
    pub follow_up: Option<FollowUp>,
    /// What an operator does during the drill.
    pub steering: Option<Steering>,
}

/// What buyers do with their orders, in percent; the rest never pay.
#[derive(Debug, Clone)]
pub struct FollowUp {
    /// Seconds that a buyer has to pay.
    pub pay_within_s: u32,
    /// Whether a buyer whose order has expired may buy again.
    pub rebuy: bool,
    /// Percent who pay in time.
    pub pay: u32,
    /// Percent who pay after the deadline.
    pub pay_late: u32,
    /// Percent who cancel.
    pub cancel: u32,
    /// How long a buyer or the provider repeats a request that gets no final answer.
    pub repeat_for: Duration,
}

/// One click: its time since the start, its buyer, and its key.
#[derive(Debug, Clone)]
pub(super) struct Click {
    pub(super) at: Duration,
    pub(super) buyer: u32,
    pub(super) key: u32,
}

impl Plan {
    /// The items with their units.
    pub fn stock(&self) -> Vec<(String, i64)> {
        let items = i64::from(self.items.max(1));
        let rest = |nth| if nth == 0 { self.units % items } else { 0 };
        (0..self.items.max(1)).map(|nth| (sku(nth), self.units / items + rest(nth))).collect()
    }

    /// What a buyer asks for with one of their keys. With a new key they want another item.
    pub(super) fn wanted(&self, buyer: u32, key: u32) -> Wanted {
        let (items, limit) = (self.items.max(1), self.limit.max(1));
        let sku = sku(buyer.wrapping_add(key) % items);
        Wanted { sku, quantity: 1 + (buyer / items).wrapping_add(key) % limit }
    }

    /// All clicks, sorted by time.
    pub(super) fn clicks(&self) -> Vec<Click> {
        let mut clicks = Vec::new();
        let mut now = 0.0;
        for buyer in 0..self.buyers {
            if let Arrival::PerSecond(rate) = self.arrival {
                // The gaps are exponential. 1 - u avoids the logarithm of 0.
                now -= (1.0 - rand::rng().random::<f64>()).ln() / rate;
            }
            let at = Duration::from_secs_f64(now);
            let click = |key, later| Click { at: at + later, buyer, key };
            let twice = [
                (1, 0, Duration::ZERO),
                (4, 0, Duration::from_millis(300)),
                (10, 1, Duration::from_millis(500)),
            ];
            let some = |(every, key, later)| (buyer % every == 0).then(|| click(key, later));
            match self.clicks {
                Clicks::Once => clicks.push(click(0, Duration::ZERO)),
                Clicks::SomeTwice => clicks.extend(twice.into_iter().filter_map(some)),
                Clicks::SomeComeBack(later) => {
                    clicks.extend(twice.into_iter().chain([(5, 2, later)]).filter_map(some));
                }
                Clicks::TenTimes => {
                    let key = |nth| if buyer == 0 { 0 } else { nth };
                    clicks.extend((0..10).map(|nth| click(key(nth), Duration::ZERO)));
                }
            }
        }
        clicks.sort_by_key(|click| click.at);
        clicks
    }
}
