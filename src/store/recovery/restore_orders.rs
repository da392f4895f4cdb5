//! Restoring orders from entries of the order log or of a file. The higher version wins, so entries may come twice and
//! in any order, and rows that are as new stay unchanged. Counters and unique keys apply as they do to new orders.

use std::collections::BTreeMap;

use sea_orm::{DatabaseTransaction, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _};

use super::plan::{Plan, Restore, Restored};
use super::update_orders::{lower_sold, stale, write_updates};
use crate::domain::{Failure, OrderId};
use crate::store::entities::{gate_return, order};
use crate::store::error::StoreError;
use crate::store::halves::Halves;
use crate::store::handle::Store;
use crate::store::log_outbox::{Touched, log};
use crate::store::many::{OnExisting, insert_many, is_one_of};
use crate::store::orders::{Refusal, return_row};
use crate::store::transaction::MayCommit;

impl Store {
    /// Writes orders as their entries have them; the outcomes are in the order of the entries, and durable. All entries
    /// go into one transaction, which is halved if the database refuses one. May be repeated.
    ///
    /// Freed units are listed in [`Store::pending_returns`], as after [`Store::change`]: the gate takes back the units
    /// that it still holds.
    ///
    /// With `relog`, written rows go into the log outbox as well: for entries that are not from the log.
    pub async fn restore_orders(
        &self,
        restores: &[Restore],
        relog: bool,
        may_commit: MayCommit<'_>,
    ) -> Result<Vec<Restored>, StoreError> {
        let mut outcomes = Vec::with_capacity(restores.len());
        let mut pending = Halves::of(restores);
        while let Some(restores) = pending.next_part() {
            match self.within(self.try_restore(restores, relog, may_commit)).await {
                Ok(Ok(restored)) => outcomes.extend(restored),
                Ok(Err(refusal)) if restores.len() == 1 => outcomes.push(refused(&refusal)),
                Err(StoreError::Broken(why)) if restores.len() == 1 => outcomes.push(Restored::Refused(why)),
                Err(
                    error @ (StoreError::Away(_)
                    | StoreError::Locked(_)
                    | StoreError::LeaseEnded
                    | StoreError::Exists(_)
                    | StoreError::Behind(_)),
                ) => {
                    return Err(error);
                }
                Ok(Err(_)) | Err(StoreError::Broken(_)) => pending.split(restores),
            }
        }
        Ok(outcomes)
    }

    async fn try_restore(
        &self,
        restores: &[Restore],
        relog: bool,
        may_commit: MayCommit<'_>,
    ) -> Result<Result<Vec<Restored>, Refusal>, StoreError> {
        let transaction = self.begin_restoring().await?;
        let rows = lock_rows(&transaction, restores).await?;
        let mut plan = Plan::of(restores, &rows);
        plan.drop_stale(restores, &stale(&transaction, &plan.updates).await?);
        if plan.written().next().is_none() {
            transaction.rollback().await?;
            return Ok(Ok(plan.outcomes));
        }
        write_updates(&transaction, &plan.updates).await?;
        if let Some(refusal) = self.insert_restored(&transaction, &plan.inserts).await? {
            transaction.rollback().await?;
            return Ok(Err(refusal));
        }
        self.insert_history(&transaction, plan.written()).await?;
        self.announce_restored(&transaction, &plan).await?;
        let returns: Vec<_> = plan
            .returning()
            .map(|restore| return_row(&restore.entry.order, restore.entry.updated_at))
            .collect();
        let existing =
            OnExisting { conflict: self.skip_existing(gate_return::Column::OrderId), postgres: "DO NOTHING" };
        insert_many(&transaction, returns, &existing).await?;
        if relog {
            let mut touched: BTreeMap<&str, Vec<Touched>> = BTreeMap::new();
            for order in plan.written().map(|restore| &restore.entry.order) {
                touched.entry(order.sale.as_str()).or_default().push(Touched::Order(order.id));
            }
            for (sale, orders) in touched {
                log(&transaction, sale, orders).await?;
            }
        }
        lower_sold(&transaction, &plan.updates).await?;
        let sales: Vec<&str> = plan.written().map(|restore| restore.entry.order.sale.as_str()).collect();
        self.commit_restored(may_commit, transaction, &sales).await?;
        Ok(Ok(plan.outcomes))
    }
}

async fn lock_rows(
    transaction: &DatabaseTransaction,
    restores: &[Restore],
) -> Result<BTreeMap<OrderId, order::Model>, StoreError> {
    let ids = restores.iter().map(|restore| restore.entry.order.id.uuid());
    let rows = order::Entity::find()
        .filter(is_one_of(transaction, order::Column::Id, ids))
        .order_by_asc(order::Column::Id)
        .lock_exclusive()
        .all(transaction)
        .await?;
    Ok(rows.into_iter().map(|row| (row.id.into(), row)).collect())
}

fn refused(refusal: &Refusal) -> Restored {
    let why = match refusal {
        Refusal::Stock(Failure::UnknownItem) => "its sale or item has no row",
        Refusal::Stock(_) => "the item has no stock left",
        Refusal::Limit => "its user already has as many units as the sale allows",
        Refusal::Conflict => "another order has its key or its number",
        Refusal::Fence => return Restored::Stale,
    };
    Restored::Refused(why.into())
}
