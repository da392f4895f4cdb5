//! Writing restored states down for webhooks. What the lost rows had been given away for already comes again, with the same
//! id.

use sea_orm::DatabaseTransaction;

use super::plan::{Plan, Restore};
use crate::domain::{Millis, OrderStatus};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::orders::FIRST_VERSION;
use crate::store::webhooks::Reached;

impl Store {
    /// Writes down what the written rows lacked. Call it in the transaction that writes them.
    pub(super) async fn announce_restored(
        &self,
        transaction: &DatabaseTransaction,
        plan: &Plan<'_>,
    ) -> Result<(), StoreError> {
        let new = plan.inserts.iter().flat_map(|restore| reached_since(restore, 0));
        let newer = plan.updates.iter().flat_map(|update| reached_since(update.restore, update.row.version));
        self.announce(transaction, new.chain(newer)).await
    }
}

/// The states that an order has reached since its row had this version.
fn reached_since(restore: &Restore, version: i32) -> Vec<Reached<'_>> {
    let entry = &restore.entry;
    let state = |version, status, at| Reached {
        order: entry.order.id,
        version,
        sale: entry.order.sale.as_str(),
        status,
        at,
    };
    let first = match entry.history.first() {
        _ if restore.begins => Some(state(FIRST_VERSION, OrderStatus::Confirmed, Millis::now())),
        None => Some(state(entry.version, entry.status, entry.recorded_at)),
        // The order ended before a worker wrote its row.
        Some(step) if step.from == OrderStatus::Accepted => None,
        Some(step) => Some(state(step.version - 1, step.from, entry.recorded_at)),
    };
    let later = entry.history.iter().map(|step| state(step.version, step.to, step.at));
    first.into_iter().chain(later).filter(|reached| reached.version > version).collect()
}
