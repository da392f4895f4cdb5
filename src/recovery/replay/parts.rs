//! The servers that a replay works with, and the callbacks for its progress.

use crate::audit::Progress as Reading;
use crate::gate::Gate;
use crate::lease::Leases;
use crate::queue::{DeadLetters, OrderLog, Publisher};
use crate::store::Store;

/// Replays orders, with the servers that it needs. Cheap to clone.
#[derive(Clone)]
pub struct Replay {
    /// The gate: its outbox is a source, and the rows that a replay writes are settled in it.
    pub gate: Gate,
    /// The database.
    pub store: Store,
    /// Leases of users, shared with the workers, and one per source.
    pub leases: Leases,
    /// The dead-letter queue, as a source.
    pub dead_letters: DeadLetters,
    /// Publishes orders again.
    pub publisher: Publisher,
    /// The order log, as a source.
    pub log: OrderLog,
}

/// Where a replay reports its progress.
pub struct Progress<'a> {
    /// Called with the orders done and the total: once when the total is known, then after each batch.
    pub advance: &'a (dyn Fn(u64, u64) + Sync),
    /// Called with what is read before and between the batches, and how many of them have been read.
    pub read: Reading<'a>,
    /// Called with what the replay is waiting for.
    pub say: &'a (dyn Fn(&str) + Sync),
}
