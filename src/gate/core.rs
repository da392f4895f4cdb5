//! The handle on the gate: settings, connection, scripts, and what this process has observed of each sale.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::batcher::Handle;
use super::clock::RedisClock;
use super::keys::SaleKeys;
use super::scripts::Scripts;
use crate::domain::{Number, Place, SaleId};
use crate::link::{Pinned, RedisLink, RedisSettings};

/// Limits and intervals of the gate, from the configuration.
#[derive(Debug, Clone)]
pub struct GateSettings {
    /// The Redis that holds the sales.
    pub redis: RedisSettings,
    /// The first part of every key, so that several installations can share a Redis.
    pub prefix: String,
    /// Maximum entries in the outbox of one sale; beyond it attempts are refused as overloaded.
    pub outbox_bound: u64,
    /// Maximum entries in the outboxes of all sales together. Other sales count with the number that this process last
    /// observed, about a second ago.
    pub outbox_bound_in_all: u64,
    /// Maximum attempts in one script call.
    pub batch: usize,
    /// Maximum attempts waiting for a script call.
    pub backlog: usize,
    /// How long an entry may be unconfirmed before the sweep publishes it.
    pub sweep_grace: Duration,
    /// How long a confirmed entry may lack a row before the sweep looks at it.
    pub overtaken_after: Duration,
    /// How long after parking the sweep checks that the dead letter still exists.
    pub parked_after: Duration,
}

/// A handle on the gate; cheap to clone. It holds no order: all state is in Redis, except the highest number seen of
/// each sale, which reveals a Redis that has gone back in time.
#[derive(Clone)]
pub struct Gate {
    pub(super) link: RedisLink,
    pub(super) settings: Arc<GateSettings>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) observed: Arc<Mutex<HashMap<SaleId, Observed>>>,
    pub(super) restart: Arc<RestartCheck>,
    pub(super) clock: Arc<RedisClock>,
    pub(super) batcher: Handle,
    /// The connection that all readers of sales share.
    pub(super) readers: Arc<tokio::sync::Mutex<Option<Pinned>>>,
}

/// This process's observations of a sale.
#[derive(Default)]
pub(super) struct Observed {
    highest: Number,
    place: Place,
    waiting: u64,
}

/// Compares each sale with the other stores, and freezes those that are behind. What it returns is dropped once Redis
/// has the admission script.
pub(super) type Compare = dyn Fn(Gate) -> BoxFuture<'static, Result<Compared, NotCompared>> + Send + Sync;

/// Whatever keeps other processes from comparing, too.
pub(super) type Compared = Box<dyn Send>;

/// The comparison failed for this reason; nothing is sold until it succeeds.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotCompared(pub(super) String);

/// The state of the check after a Redis restart, shared by all clones of a [`Gate`].
#[derive(Default)]
pub(super) struct RestartCheck {
    pub(super) compare: OnceLock<Box<Compare>>,
    /// When the last comparison failed, and why. The lock lets one caller compare while the others wait.
    pub(super) failed: tokio::sync::Mutex<Option<(Instant, String)>>,
}

impl Gate {
    pub(super) fn keys(&self, sale: &SaleId) -> SaleKeys {
        SaleKeys::new(&self.settings.prefix, sale)
    }

    fn observed(&self) -> MutexGuard<'_, HashMap<SaleId, Observed>> {
        self.observed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The highest number that this process has seen of the sale; zero before the first.
    pub fn highest_number(&self, sale: &SaleId) -> Number {
        self.observed().get(sale).map(|observed| observed.highest).unwrap_or_default()
    }

    /// The same, as script arguments.
    pub(super) fn highest_args(&self, sale: &SaleId) -> [String; 2] {
        let highest = self.highest_number(sale);
        [highest.epoch.to_string(), highest.seq.to_string()]
    }

    /// The highest place, as script arguments.
    pub(super) fn place_args(&self, sale: &SaleId) -> [String; 2] {
        let place = self.highest_place(sale);
        [place.line.to_string(), place.number.to_string()]
    }

    /// Records the highest number seen of the sale, from a reply of the gate or from a row. Later scripts freeze a gate
    /// that is behind it.
    pub fn observe_number(&self, sale: &SaleId, number: Number) {
        let mut observed = self.observed();
        // `entry` would clone the sale id on each call.
        match observed.get_mut(sale) {
            Some(observed) => observed.highest = number.max(observed.highest),
            None => {
                observed.insert(sale.clone(), Observed { highest: number, ..Observed::default() });
            }
        }
    }

    /// The highest place of the database in this sale that this process has sent to the gate, or heard from it.
    pub fn highest_place(&self, sale: &SaleId) -> Place {
        self.observed().get(sale).map(|observed| observed.place).unwrap_or_default()
    }

    /// Records a place of the database, which goes to the gate with the next settlement of a known sale.
    pub fn observe_place(&self, sale: &SaleId, place: Place) {
        if let Some(observed) = self.observed().get_mut(sale) {
            observed.place = place.max(observed.place);
        }
    }

    /// Records how many orders of a known sale are in flight.
    pub(super) fn observe_waiting(&self, sale: &SaleId, waiting: u64) {
        if let Some(observed) = self.observed().get_mut(sale) {
            observed.waiting = waiting;
        }
    }

    pub(super) fn forget(&self, sale: &SaleId) {
        self.observed().remove(sale);
    }

    /// How many entries the outbox of this sale may hold now.
    pub(super) fn bound(&self, sale: &SaleId) -> u64 {
        let others: u64 =
            self.observed().iter().filter(|(id, _)| *id != sale).map(|(_, observed)| observed.waiting).sum();
        self.settings.outbox_bound.min(self.settings.outbox_bound_in_all.saturating_sub(others))
    }
}
