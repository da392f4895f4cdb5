//! Who clicks when. The presets carry the numbers of the load tests that this project was founded
//! on, as the floor.

use std::time::Duration;

use rand::RngExt as _;

use super::Steering;

/// When the clicks come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrival {
    /// All in the same instant.
    AtOnce,
    /// At random, so many a second on average (a Poisson process: as independent people come).
    PerSecond(f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Twice as many buyers as units, all at once: exactly the stock is sold.
    Oversell,
    /// Two users click ten times at once: one with one key, one with ten.
    Duplicate,
    /// Thousands of requests a second: everyone is answered, and soon.
    Rush,
    /// Half of the buyers never pay; others come until every unit is paid for.
    Returns,
    /// The demonstration: a crowd forty times the stock, in which some click twice.
    Demo,
}

impl Preset {
    pub fn plan(self) -> Plan {
        let plan = |name, units, buyers, arrival| Plan {
            name,
            units,
            buyers,
            arrival,
            connections: 256,
            clicks: Clicks::Once,
            repeat_for: Duration::from_secs(3),
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clicks {
    Once,
    /// Every fourth buyer clicks again with the same key, every tenth with another.
    SomeTwice,
    /// The first user ten times with one key, the second ten times with ten keys.
    TenTimes,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub name: &'static str,
    pub units: i64,
    pub buyers: u32,
    pub arrival: Arrival,
    /// Connections of the whole crowd. A click that finds none free waits, and the wait counts.
    pub connections: usize,
    pub clicks: Clicks,
    /// How long a buyer repeats a click, with the same key, whose outcome is unknown.
    pub repeat_for: Duration,
    /// How long orders may take to end after the last click, before they count as unfinished.
    pub settle_within: Duration,
    /// What buyers do with their orders; without it, nothing.
    pub follow_up: Option<FollowUp>,
    /// What an operator does meanwhile.
    pub steering: Option<Steering>,
}

/// What buyers do with their orders, in percent; the rest never pay.
#[derive(Debug, Clone)]
pub struct FollowUp {
    pub pay_within_s: u32,
    /// May they buy again?
    pub rebuy: bool,
    pub pay: u32,
    pub pay_late: u32,
    pub cancel: u32,
    /// How long each insists on an answer.
    pub repeat_for: Duration,
}

/// One click: user, key, and the time since the start at which it happens.
#[derive(Debug, Clone)]
pub(super) struct Click {
    pub(super) at: Duration,
    pub(super) buyer: u32,
    pub(super) key: u32,
}

impl Plan {
    /// All clicks in the order of their times.
    pub(super) fn clicks(&self) -> Vec<Click> {
        let mut clicks = Vec::new();
        let mut now = 0.0;
        for buyer in 0..self.buyers {
            if let Arrival::PerSecond(rate) = self.arrival {
                // Exponential gaps; 1 - u, because the logarithm of 0 is infinite.
                now -= (1.0 - rand::rng().random::<f64>()).ln() / rate;
            }
            let at = Duration::from_secs_f64(now);
            let click = |key, later: u64| Click { at: at + Duration::from_millis(later), buyer, key };
            match self.clicks {
                Clicks::Once => clicks.push(click(0, 0)),
                Clicks::SomeTwice => {
                    clicks.push(click(0, 0));
                    if buyer % 4 == 0 {
                        clicks.push(click(0, 300));
                    }
                    if buyer % 10 == 0 {
                        clicks.push(click(1, 500));
                    }
                }
                Clicks::TenTimes => {
                    clicks.extend((0..10).map(|nth| click(if buyer == 0 { 0 } else { nth }, 0)));
                }
            }
        }
        clicks.sort_by_key(|click| click.at);
        clicks
    }
}
