//! Inserting restored orders, and their history.

use sea_orm::{ActiveValue::Set, DatabaseTransaction};
use uuid::Uuid;

use super::plan::Restore;
use crate::store::entities::{order, order_event};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::{OnExisting, insert_many};
use crate::store::orders::{Claim, Refusal, confirmed_row, raise_sold};

impl Store {
    /// Inserts orders with their counters, as [`Store::record`] does.
    pub(super) async fn insert_restored(
        &self,
        transaction: &DatabaseTransaction,
        inserts: &[&Restore],
    ) -> Result<Option<Refusal>, StoreError> {
        if inserts.is_empty() {
            return Ok(None);
        }
        let attempt = Uuid::new_v4();
        let claims: Vec<Claim> = inserts
            .iter()
            .map(|restore| Claim { order: restore.entry.order.clone(), fence: restore.fence })
            .collect();
        let deadlines = self.deadlines(transaction, &claims).await?;
        let rows = inserts.iter().zip(&claims).map(|(restore, claim)| match restore.begins {
            true => confirmed_row(claim, attempt, deadlines.now, deadlines.pay_by(claim)),
            false => restored_row(restore, claim, attempt),
        });
        let written = self.insert_orders(transaction, rows.collect(), attempt).await?;
        if written.len() != inserts.len() {
            return Ok(Some(Refusal::Conflict));
        }
        let live = inserts.iter().zip(claims).filter(|(restore, _)| restore.entry.status.is_live());
        let live: Vec<Claim> = live
            .map(|(restore, mut claim)| {
                // The old database allowed it; the limits have changed since.
                if !restore.begins {
                    claim.order.limit = u32::MAX;
                }
                claim
            })
            .collect();
        let live: Vec<&Claim> = live.iter().collect();
        if live.is_empty() {
            return Ok(None);
        }
        if let Some(refusal) = self.add_units(transaction, &live, &deadlines.limits).await? {
            return Ok(Some(refusal));
        }
        raise_sold(transaction, &live).await
    }

    /// Inserts the histories of orders, skipping changes that already exist.
    pub(super) async fn insert_history(
        &self,
        transaction: &DatabaseTransaction,
        restores: impl Iterator<Item = &Restore>,
    ) -> Result<(), StoreError> {
        let events: Vec<_> = restores
            .flat_map(|Restore { entry, .. }| {
                entry.history.iter().map(|step| order_event::ActiveModel {
                    order_id: Set(entry.order.id.uuid()),
                    version: Set(step.version),
                    sale_id: Set(entry.order.sale.to_string()),
                    from_status: Set(step.from.as_str().into()),
                    to_status: Set(step.to.as_str().into()),
                    actor: Set(step.by.clone()),
                    reason: Set(step.reason.clone()),
                    at_ms: Set(step.at.0),
                })
            })
            .collect();
        let existing =
            OnExisting { conflict: self.skip_existing(order_event::Column::OrderId), postgres: "DO NOTHING" };
        insert_many(transaction, events, &existing).await?;
        Ok(())
    }
}

fn restored_row(restore: &Restore, claim: &Claim, attempt: Uuid) -> order::ActiveModel {
    let entry = &restore.entry;
    let mut row = confirmed_row(claim, attempt, entry.recorded_at, entry.pay_by);
    row.status = Set(entry.status.as_str().into());
    row.failure = Set(entry.failure.map(|failure| failure.as_str().into()));
    row.version = Set(entry.version);
    row.updated_at_ms = Set(entry.updated_at.0);
    if !entry.status.is_live() {
        row.live_key = Set(None);
    }
    row
}
