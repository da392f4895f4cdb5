//! How rows compare with the entries of their orders, and the plan of one transaction that restores them.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::{OrderEntry, OrderId, OrderStatus};
use crate::store::entities::order;

/// An order's entry, with the fencing token of the lease under which it is restored.
#[derive(Debug, Clone)]
pub struct Restore {
    /// The order as the log has it.
    pub entry: OrderEntry,
    /// Only its acceptance is known: its row begins now, and so does its time to pay.
    pub begins: bool,
    /// The fencing token of the lease on its user.
    pub fence: i64,
}

/// The outcome of restoring an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// There was no row; it was inserted.
    Inserted,
    /// The row was older; it was updated.
    Changed,
    /// The row is as new, or newer.
    Same,
    /// The database refused it, for this reason; nothing was written.
    Refused(String),
    /// A holder with a higher token has written for this user: take the lease again.
    Stale,
}

/// An order whose row is older than its entry.
pub(in crate::store) struct Update<'a> {
    pub(in crate::store) restore: &'a Restore,
    pub(in crate::store) row: &'a order::Model,
}

impl Update<'_> {
    pub(in crate::store) fn was_live(&self) -> bool {
        self.row.live_key.is_some()
    }

    /// Whether the order gives up its units.
    pub(in crate::store) fn ends(&self) -> bool {
        self.was_live() && !self.restore.entry.status.is_live()
    }
}

/// The rows to write, and the outcome of each entry.
pub(in crate::store) struct Plan<'a> {
    pub(in crate::store) outcomes: Vec<Restored>,
    pub(in crate::store) inserts: Vec<&'a Restore>,
    pub(in crate::store) updates: Vec<Update<'a>>,
}

impl<'a> Plan<'a> {
    /// Compares entries with their rows.
    pub(in crate::store) fn of(restores: &'a [Restore], rows: &'a BTreeMap<OrderId, order::Model>) -> Self {
        let mut plan = Self { outcomes: Vec::new(), inserts: Vec::new(), updates: Vec::new() };
        let mut seen = BTreeSet::new();
        for restore in restores {
            let id = restore.entry.order.id;
            plan.outcomes.push(match rows.get(&id) {
                _ if !seen.insert(id) => Restored::Same,
                None => {
                    plan.inserts.push(restore);
                    Restored::Inserted
                }
                Some(row) => match compare(row, &restore.entry) {
                    Comparison::Older => {
                        plan.updates.push(Update { restore, row });
                        Restored::Changed
                    }
                    Comparison::Same => Restored::Same,
                    Comparison::Diverged => Restored::Refused(format!(
                        "the row is {} by another history, and not {}",
                        row.status, restore.entry.status
                    )),
                },
            });
        }
        plan
    }

    /// Leaves out updates under a stale token.
    pub(in crate::store) fn drop_stale(&mut self, restores: &[Restore], stale: &BTreeSet<OrderId>) {
        if stale.is_empty() {
            return;
        }
        self.updates.retain(|update| !stale.contains(&update.restore.entry.order.id));
        for (outcome, restore) in self.outcomes.iter_mut().zip(restores) {
            if *outcome == Restored::Changed && stale.contains(&restore.entry.order.id) {
                *outcome = Restored::Stale;
            }
        }
    }

    /// Every entry that is written.
    pub(in crate::store) fn written(&self) -> impl Iterator<Item = &'a Restore> {
        self.inserts.iter().copied().chain(self.updates.iter().map(|update| update.restore))
    }

    /// Entries whose units go back to the gate. The gate may hold units even of orders that were never live here.
    pub(in crate::store) fn returning(&self) -> impl Iterator<Item = &'a Restore> {
        let ended = self.inserts.iter().copied();
        let ending = self.updates.iter().filter(|update| update.was_live()).map(|update| update.restore);
        ended.chain(ending).filter(|restore| gives_back(restore.entry.status))
    }
}

/// The unit of an order that failed may never have existed, so it is not given back.
fn gives_back(status: OrderStatus) -> bool {
    matches!(status, OrderStatus::Cancelled | OrderStatus::Expired | OrderStatus::Refunded)
}

/// How a row compares with its entry.
pub(in crate::store) enum Comparison {
    Older,
    /// As new, or newer.
    Same,
    /// The row took a different path from an earlier version.
    Diverged,
}

/// The first version of a row is confirmed, or ended before a worker wrote it. If two processes wrote the first
/// version, the ended one is later: a message that arrives after the end would have found its row.
fn compare(row: &order::Model, entry: &OrderEntry) -> Comparison {
    // No change leads out of an ended state.
    if row.version < entry.version && row.live_key.is_none() && entry.status.is_live() {
        return Comparison::Diverged;
    }
    if row.version != entry.version {
        return if row.version < entry.version { Comparison::Older } else { Comparison::Same };
    }
    if row.status == entry.status.as_str() {
        return Comparison::Same;
    }
    let confirmed =
        [&*row.status, entry.status.as_str()].map(|status| status == OrderStatus::Confirmed.as_str());
    match confirmed {
        [true, false] if !entry.status.is_live() => Comparison::Older,
        [false, true] if row.live_key.is_none() => Comparison::Same,
        _ => Comparison::Diverged,
    }
}
