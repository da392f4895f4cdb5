//! Bringing the database up to date from entries of the order log, or of a file. What has the higher
//! version counts, so entries may come twice and in any order, and what the database has already is left
//! as it is. The last line judges here as everywhere.

use std::collections::{BTreeMap, BTreeSet};

use sea_orm::sea_query::{Expr, IntoIden, OnConflict};
use sea_orm::{
    ActiveValue::Set, DatabaseTransaction, DbBackend, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};
use uuid::Uuid;

use super::counted::raise_sold;
use super::entities::{gate_return, order, order_event};
use super::journal::{Touched, log};
use super::life::owed;
use super::many::{Meets, insert_many, is_one_of};
use super::new_rows::confirmed_row;
use super::record::{Claim, Refusal};
use super::restore_update::{Against, Update, against, stale, write_update};
use super::{Store, StoreError};
use crate::domain::{Failure, OrderEntry, OrderId, OrderStatus};

/// An order as the log has it, with the fencing token of the lease under which it is restored.
#[derive(Debug, Clone)]
pub struct Restore {
    pub entry: OrderEntry,
    /// All that is known is that it was accepted: its row begins now, and so does its time to be paid.
    pub begins: bool,
    pub fence: i64,
}

/// What became of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// There was no row.
    Inserted,
    /// The row was older.
    Changed,
    /// The row is as new, or newer.
    Same,
    /// The last line refused it; nothing was written.
    Refused(String),
    /// A holder with a higher token has written for this user: take the lease again.
    Stale,
}

impl Store {
    /// Writes orders as their entries have them; the answers are in their order. All in one transaction,
    /// which is halved where the last line refuses one. May be repeated.
    ///
    /// Units that are free again are listed in [`Store::pending_returns`], as after [`Store::change`]: the gate
    /// takes back what it still holds.
    ///
    /// With `relog` what is written goes to the order log as well: for entries that are not from it.
    pub async fn restore_orders(
        &self,
        restores: &[Restore],
        relog: bool,
        may_commit: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Restored>, StoreError> {
        let mut answers = Vec::with_capacity(restores.len());
        let mut pending = vec![restores];
        while let Some(restores) = pending.pop() {
            match self.within(self.try_restore(restores, relog, may_commit)).await {
                Ok(Ok(restored)) => answers.extend(restored),
                Ok(Err(refusal)) if restores.len() == 1 => answers.push(refused(&refusal)),
                Err(StoreError::Broken(why)) if restores.len() == 1 => answers.push(Restored::Refused(why)),
                Err(error @ (StoreError::Away(_) | StoreError::LeaseEnded | StoreError::Exists(_))) => {
                    return Err(error);
                }
                Ok(Err(_)) | Err(StoreError::Broken(_)) => {
                    let (first, second) = restores.split_at(restores.len() / 2);
                    pending.extend([second, first]);
                }
            }
        }
        Ok(answers)
    }

    async fn try_restore(
        &self,
        restores: &[Restore],
        relog: bool,
        may_commit: &(dyn Fn() -> bool + Sync),
    ) -> Result<Result<Vec<Restored>, Refusal>, StoreError> {
        let transaction = self.begin().await?;
        let ids = restores.iter().map(|restore| restore.entry.order.id.uuid());
        let rows = order::Entity::find()
            .filter(is_one_of(&transaction, order::Column::Id, ids))
            .order_by_asc(order::Column::Id)
            .lock_exclusive()
            .all(&transaction)
            .await?;
        let rows: BTreeMap<OrderId, order::Model> =
            rows.into_iter().map(|row| (row.id.into(), row)).collect();
        let mut answers = Vec::with_capacity(restores.len());
        let (mut inserts, mut updates) = (Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for restore in restores {
            let id = restore.entry.order.id;
            answers.push(match rows.get(&id) {
                _ if !seen.insert(id) => Restored::Same,
                None => {
                    inserts.push(restore);
                    Restored::Inserted
                }
                Some(row) => match against(row, &restore.entry) {
                    Against::Older => {
                        updates.push(Update { restore, row });
                        Restored::Changed
                    }
                    Against::Same => Restored::Same,
                    Against::Other => Restored::Refused(format!(
                        "the row is {} by another history, and not {}",
                        row.status, restore.entry.status
                    )),
                },
            });
        }
        let stale = stale(&transaction, &updates).await?;
        if !stale.is_empty() {
            updates.retain(|update| !stale.contains(&update.restore.entry.order.id));
            for (answer, restore) in answers.iter_mut().zip(restores) {
                if *answer == Restored::Changed && stale.contains(&restore.entry.order.id) {
                    *answer = Restored::Stale;
                }
            }
        }
        if inserts.is_empty() && updates.is_empty() {
            transaction.rollback().await?;
            return Ok(Ok(answers));
        }
        for update in &updates {
            write_update(&transaction, update).await?;
        }
        if let Some(refusal) = self.insert(&transaction, &inserts).await? {
            transaction.rollback().await?;
            return Ok(Err(refusal));
        }
        let written = || inserts.iter().copied().chain(updates.iter().map(|update| update.restore));
        self.insert_history(&transaction, written()).await?;
        // Of those that were never live here the gate may hold units all the same.
        let ended = inserts.iter().copied().filter(|restore| gives_back(restore.entry.status));
        let ending = updates.iter().filter(|update| update.was_live()).map(|update| update.restore);
        let owing: Vec<_> = ended
            .chain(ending.filter(|restore| gives_back(restore.entry.status)))
            .map(|restore| owed(&restore.entry.order, restore.entry.updated_at))
            .collect();
        if !owing.is_empty() {
            gate_return::Entity::insert_many(owing)
                .on_conflict(self.skip(gate_return::Column::OrderId))
                .exec_without_returning(&transaction)
                .await?;
        }
        if relog {
            for restore in written() {
                let order = &restore.entry.order;
                log(&transaction, order.sale.as_str(), [Touched::Order(order.id)]).await?;
            }
        }
        if !may_commit() {
            transaction.rollback().await?;
            return Err(StoreError::LeaseEnded);
        }
        transaction.commit().await?;
        Ok(Ok(answers))
    }

    async fn insert(
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
                // That the old database has allowed it is known; limits were changed since.
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

    async fn insert_history(
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
        let there = Meets { conflict: self.skip(order_event::Column::OrderId), postgres: "DO NOTHING" };
        insert_many(transaction, events, &there).await?;
        Ok(())
    }

    /// Skips a row whose key is there. `column` is part of the key.
    fn skip<C: sea_orm::ColumnTrait>(&self, column: C) -> OnConflict {
        match self.db.get_database_backend() {
            DbBackend::MySql => OnConflict::new().value(column, Expr::col(column.into_iden())).to_owned(),
            _ => OnConflict::new().do_nothing().to_owned(),
        }
    }
}

/// Of an order that failed the unit may never have existed.
fn gives_back(status: OrderStatus) -> bool {
    matches!(status, OrderStatus::Cancelled | OrderStatus::Expired | OrderStatus::Refunded)
}

fn refused(refusal: &Refusal) -> Restored {
    let why = match refusal {
        Refusal::Stock(Failure::UnknownItem) => "its sale or item has no row",
        Refusal::Stock(_) => "the item's stock is spent",
        Refusal::Limit => "its user has as many units as the sale allows",
        Refusal::Conflict => "another order has its key or its number",
        Refusal::Fence => return Restored::Stale,
    };
    Restored::Refused(why.into())
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
