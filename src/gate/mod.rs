//! Who gets a unit? The gate answers, atomically, in Redis: window, repeat, limit and stock are
//! judged in one script, which also writes the accepted order to the outbox.
//!
//! An order is in the outbox from its admission until its row is committed: so the outbox is the
//! list of orders in flight, and a broker that loses its data loses no order. This module knows
//! neither the broker nor the database.

mod admission;
mod batcher;
mod error;
mod holdings;
mod keys;
mod outbox;
mod rebuild;
mod restart;
mod sale;
mod scripts;
mod wire;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Millis, Number, SaleId};
use crate::link::{RedisLink, RedisSettings};

pub use error::GateError;
pub use holdings::{Adjusted, Holding};
pub use outbox::{Outcome, Settlement};
pub use rebuild::{RebuildStart, RebuiltHolding, RebuiltItem, RebuiltSale};
pub use sale::{GateItem, GateSale, Loaded, Moved, Restocked, Unloaded, Versions};

/// How long a process may answer by what the gate told it of a sale, from when it asked. Whoever hears from
/// the gate that a sale is another now tells nobody outside before [`until_refusals_expire`] returns: by then no
/// process answers by how it was before. Both measure a span of their own, so no clocks are compared.
pub const REFUSAL_MAX_AGE: Duration = Duration::from_millis(4);

/// Returns when no process answers any more by how a sale was before this was `heard` from the gate.
pub async fn until_refusals_expire(heard: Instant) {
    tokio::time::sleep_until(heard + REFUSAL_MAX_AGE).await;
}

#[derive(Debug, Clone)]
pub struct GateSettings {
    pub redis: RedisSettings,
    /// The first part of every key, so that several installations can share a Redis.
    pub prefix: String,
    /// Entries that the outbox of one sale may hold; beyond it admissions are `overloaded`.
    pub outbox_bound: u64,
    /// Entries that the outboxes of all sales together may hold. Those of other sales are counted
    /// as they were when this process last heard of them, about a second ago.
    pub outbox_bound_in_all: u64,
    /// Attempts in one script call, at most.
    pub batch: usize,
    /// Attempts that may wait for a script call, at most.
    pub backlog: usize,
    /// How long an entry may be unconfirmed before the sweep publishes it.
    pub sweep_grace: Duration,
    /// How long a confirmed entry may lack its row before the sweep looks at it.
    pub overtaken_after: Duration,
    /// When the sweep looks at a parked entry, to see whether its letter is still there.
    pub parked_after: Duration,
}

/// Cheap to clone. Holds no order: everything it knows is in Redis, except the highest number
/// that it has seen of each sale, by which a Redis that went back in time is noticed.
#[derive(Clone)]
pub struct Gate {
    link: RedisLink,
    settings: Arc<GateSettings>,
    scripts: Arc<scripts::Scripts>,
    known: Arc<Mutex<HashMap<SaleId, Known>>>,
    restart: Arc<restart::RestartCheck>,
    batcher: batcher::Handle,
}

/// What this process has seen of a sale.
#[derive(Default)]
struct Known {
    highest: Number,
    waiting: u64,
}

impl Gate {
    /// Must be called inside a tokio runtime. Does not wait for Redis.
    pub fn open(settings: GateSettings) -> Result<Self, GateError> {
        let link = RedisLink::open(&settings.redis)?;
        let (batcher, inbox) = batcher::Handle::new(settings.backlog);
        let gate = Self {
            link,
            scripts: Arc::new(scripts::Scripts::new(&settings.prefix)),
            settings: Arc::new(settings),
            known: Arc::default(),
            restart: Arc::default(),
            batcher,
        };
        batcher::spawn(&gate, inbox);
        Ok(gate)
    }

    fn keys(&self, sale: &SaleId) -> keys::SaleKeys {
        keys::SaleKeys::new(&self.settings.prefix, sale)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SaleId, Known>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The highest number that this process has seen of the sale.
    pub fn highest_number(&self, sale: &SaleId) -> Number {
        self.known().get(sale).map(|known| known.highest).unwrap_or_default()
    }

    /// The same as the scripts take it.
    fn highest_args(&self, sale: &SaleId) -> [String; 2] {
        let highest = self.highest_number(sale);
        [highest.epoch.to_string(), highest.seq.to_string()]
    }

    /// Remembers a number of the sale, wherever it was seen: an answer of the gate, a row.
    pub fn observe_number(&self, sale: &SaleId, number: Number) {
        let mut known = self.known();
        // Not `entry`, which would copy the name each time.
        match known.get_mut(sale) {
            Some(known) => known.highest = number.max(known.highest),
            None => {
                known.insert(sale.clone(), Known { highest: number, waiting: 0 });
            }
        }
    }

    /// Remembers how many orders of the sale are in flight.
    fn observe_waiting(&self, sale: &SaleId, waiting: u64) {
        if let Some(known) = self.known().get_mut(sale) {
            known.waiting = waiting;
        }
    }

    /// Entries that the outbox of this sale may hold now.
    fn bound(&self, sale: &SaleId) -> u64 {
        let others: u64 =
            self.known().iter().filter(|(id, _)| *id != sale).map(|(_, known)| known.waiting).sum();
        self.settings.outbox_bound.min(self.settings.outbox_bound_in_all.saturating_sub(others))
    }

    /// Is Redis there, and with which identity? Another `run_id` is another process.
    pub async fn ping(&self) -> Result<String, GateError> {
        let info: String = self.link.query(redis::cmd("INFO").arg("server")).await?;
        info.lines()
            .find_map(|line| line.strip_prefix("run_id:"))
            .map(str::to_owned)
            .ok_or_else(|| GateError::Broken("INFO server names no run_id".into()))
    }

    /// Redis's clock.
    pub async fn clock(&self) -> Result<Millis, GateError> {
        let (seconds, micros): (i64, i64) = self.link.query(&redis::cmd("TIME")).await?;
        Ok(Millis(seconds * 1000 + micros / 1000))
    }

    /// Does Redis know this installation's admission script? Then its books have been compared.
    pub async fn is_compared(&self) -> Result<bool, GateError> {
        Ok(self.link.knows_script(&self.scripts.admit).await?)
    }

    /// The settings of Redis that break a promise, each with what to change. Empty is good.
    /// `None` where the server does not let itself be asked (managed services forbid CONFIG).
    pub async fn broken_promises(&self) -> Result<Option<Vec<String>>, GateError> {
        let mut wrong = Vec::new();
        for (name, good, why) in [
            ("maxmemory-policy", "noeviction", "an evicted key is a sold unit forgotten"),
            ("appendonly", "yes", "a restart would forget every order that has no row yet"),
            ("appendfsync", "always", "a power cut would forget accepted orders"),
        ] {
            let answer: Result<Vec<String>, _> =
                self.link.query(redis::cmd("CONFIG").arg("GET").arg(name)).await;
            match answer {
                Ok(pair) if pair.len() == 2 => {
                    if pair[1] != good {
                        wrong.push(format!(
                            "redis has {name} = {}: {why}; set it to {good} (CONFIG SET {name} {good}, and in redis.conf)",
                            pair[1]
                        ));
                    }
                }
                Ok(_) | Err(crate::link::Fault::Broken(_)) => return Ok(None),
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(Some(wrong))
    }
}
