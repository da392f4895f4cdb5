//! Bringing the database up to date from entries of the order log, or of a file. What has the higher
//! version counts, so entries may come twice and in any order, and what the database has already is left
//! as it is. The last line judges here as everywhere.

use std::collections::{BTreeMap, BTreeSet};

use sea_orm::sea_query::{Expr, ExprTrait as _, IntoIden, OnConflict};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, DbBackend, EntityTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _,
};
use uuid::Uuid;

use super::entities::{gate_return, item, order, order_event, payment_event, sale, sale_act, user_units};
use super::life::owed;
use super::record::{Claim, Refusal, confirmed_row, raise_sold};
use super::sales::terms_of;
use super::{Store, StoreError};
use crate::domain::{
    ActEntry, Failure, OrderEntry, OrderId, OrderStatus, PaymentEntry, SaleEntry, SaleState,
};

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
    Refused(&'static str),
    /// A holder with a higher token has written for this user: take the lease again.
    Stale,
}

/// An order whose row is older than its entry.
struct Update<'a> {
    restore: &'a Restore,
    version: i32,
    was_live: bool,
}

impl Store {
    /// Writes orders as their entries have them; the answers are in their order. All in one transaction,
    /// which is halved where the last line refuses one. May be repeated.
    ///
    /// Units that are free again are listed in [`Store::returns`], as after [`Store::change`]: the gate
    /// takes back what it still holds.
    pub async fn restore_orders(
        &self,
        restores: &[Restore],
        may_commit: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Restored>, StoreError> {
        let mut answers = Vec::with_capacity(restores.len());
        let mut pending = vec![restores];
        while let Some(restores) = pending.pop() {
            match self.within(self.try_restore(restores, may_commit)).await? {
                Ok(restored) => answers.extend(restored),
                Err(refusal) if restores.len() == 1 => answers.push(refused(&refusal)),
                Err(_) => {
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
        may_commit: &(dyn Fn() -> bool + Sync),
    ) -> Result<Result<Vec<Restored>, Refusal>, StoreError> {
        let transaction = self.begin().await?;
        let rows = order::Entity::find()
            .filter(order::Column::Id.is_in(restores.iter().map(|restore| restore.entry.order.id.uuid())))
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
                Some(row) if row.version < restore.entry.version => {
                    updates.push(Update { restore, version: row.version, was_live: row.live_key.is_some() });
                    Restored::Changed
                }
                Some(_) => Restored::Same,
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
        let ending = updates.iter().filter(|update| update.was_live).map(|update| update.restore);
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
        if !may_commit() {
            transaction.rollback().await?;
            return Err(StoreError::Overdue);
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
        order::Entity::insert_many(rows)
            .on_conflict(self.skip_duplicates())
            .exec_without_returning(transaction)
            .await?;
        let ids: Vec<Uuid> = inserts.iter().map(|restore| restore.entry.order.id.uuid()).collect();
        let written: Vec<Uuid> = order::Entity::find()
            .select_only()
            .column(order::Column::Id)
            .filter(order::Column::Id.is_in(ids))
            .filter(order::Column::AttemptId.eq(attempt))
            .into_tuple()
            .all(transaction)
            .await?;
        if written.len() != inserts.len() {
            return Ok(Some(Refusal::Conflict));
        }
        let live = inserts.iter().zip(&claims).filter(|(restore, _)| restore.entry.status.is_live());
        let live: Vec<&Claim> = live.map(|(_, claim)| claim).collect();
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
        if !events.is_empty() {
            order_event::Entity::insert_many(events)
                .on_conflict(self.skip(order_event::Column::OrderId))
                .exec_without_returning(transaction)
                .await?;
        }
        Ok(())
    }

    /// Brings a sale's row up to date: terms, state and each item's stock by their own versions. `true`
    /// where something was written.
    pub async fn restore_sale(&self, entry: &SaleEntry) -> Result<bool, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let id = entry.sale_id.as_str();
            let row = sale::Entity::find_by_id(id).lock_exclusive().one(&transaction).await?;
            let changed = match row {
                None => {
                    insert_sale(&transaction, entry).await?;
                    true
                }
                Some(row) => update_sale(&transaction, entry, &row).await?,
            };
            transaction.commit().await?;
            Ok(changed)
        })
        .await
    }

    /// `true` where the act was not known, or its end was not. Its sale must be there.
    pub async fn restore_act(&self, entry: &ActEntry) -> Result<bool, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let id = (entry.sale_id.to_string(), entry.key.clone());
            let row = sale_act::Entity::find_by_id(id).lock_exclusive().one(&transaction).await?;
            let newer = match &row {
                None => true,
                Some(row) => row.state == "pending" && entry.state != "pending",
            };
            if newer {
                let model = sale_act::ActiveModel {
                    sale_id: Set(entry.sale_id.to_string()),
                    key: Set(entry.key.clone()),
                    kind: Set(entry.act.clone()),
                    args: Set(entry.args.clone()),
                    sku: Set(entry.sku.as_ref().map(ToString::to_string)),
                    units: Set(entry.units),
                    item_version: Set(entry.item_version),
                    actor: Set(entry.by.clone()),
                    reason: Set(entry.reason.clone()),
                    state: Set(entry.state.clone()),
                    result: Set(entry.result.clone()),
                    at_ms: Set(entry.at.0),
                    ended_at_ms: Set(entry.ended_at.map(|at| at.0)),
                };
                sale_act::Entity::delete_many()
                    .filter(sale_act::Column::SaleId.eq(entry.sale_id.as_str()))
                    .filter(sale_act::Column::Key.eq(entry.key.as_str()))
                    .exec(&transaction)
                    .await?;
                sale_act::Entity::insert(model).exec_without_returning(&transaction).await?;
            }
            transaction.commit().await?;
            Ok(newer)
        })
        .await
    }

    /// `true` where the event was not known, or the row was older.
    pub async fn restore_payment(&self, entry: &PaymentEntry) -> Result<bool, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let id = (entry.provider.clone(), entry.event_id.clone());
            let row = payment_event::Entity::find_by_id(id).lock_exclusive().one(&transaction).await?;
            let newer = row.is_none_or(|row| row.updated_at_ms < entry.updated_at.0);
            if newer {
                let model = payment_event::ActiveModel {
                    provider: Set(entry.provider.clone()),
                    event_id: Set(entry.event_id.clone()),
                    kind: Set(entry.event.clone()),
                    sale_id: Set(entry.sale_id.to_string()),
                    order_id: Set(entry.order_id.uuid()),
                    user_id: Set(entry.user_id.as_ref().map(ToString::to_string)),
                    state: Set(entry.state.clone()),
                    new_order_id: Set(entry.new_order_id.map(OrderId::uuid)),
                    detail: Set(entry.detail.clone()),
                    received_at_ms: Set(entry.received_at.0),
                    due_at_ms: Set(entry.due_at.0),
                    updated_at_ms: Set(entry.updated_at.0),
                };
                payment_event::Entity::delete_many()
                    .filter(payment_event::Column::Provider.eq(entry.provider.as_str()))
                    .filter(payment_event::Column::EventId.eq(entry.event_id.as_str()))
                    .exec(&transaction)
                    .await?;
                payment_event::Entity::insert(model).exec_without_returning(&transaction).await?;
            }
            transaction.commit().await?;
            Ok(newer)
        })
        .await
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
    match refusal {
        Refusal::Stock(Failure::UnknownItem) => Restored::Refused("its sale or item has no row"),
        Refusal::Stock(_) => Restored::Refused("the item's stock is spent"),
        Refusal::Limit => Restored::Refused("its user has as many units as the sale allows"),
        Refusal::Conflict => Restored::Refused("another order has its key or its number"),
        Refusal::Fence => Restored::Stale,
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

async fn stale(
    transaction: &DatabaseTransaction,
    updates: &[Update<'_>],
) -> Result<BTreeSet<OrderId>, StoreError> {
    let mut stale = BTreeSet::new();
    let mut sales: BTreeMap<&str, Vec<&Update<'_>>> = BTreeMap::new();
    for update in updates {
        sales.entry(update.restore.entry.order.sale.as_str()).or_default().push(update);
    }
    for (sale, updates) in sales {
        let users: BTreeSet<&str> =
            updates.iter().map(|update| update.restore.entry.order.user.as_str()).collect();
        let held = user_units::Entity::find()
            .filter(user_units::Column::SaleId.eq(sale))
            .filter(user_units::Column::UserId.is_in(users))
            .order_by_asc(user_units::Column::UserId)
            .lock_exclusive()
            .all(transaction)
            .await?;
        for update in updates {
            let order = &update.restore.entry.order;
            let later = |held: &user_units::Model| {
                held.user_id == order.user.as_str() && held.fence > update.restore.fence
            };
            if held.iter().any(later) {
                stale.insert(order.id);
            }
        }
    }
    Ok(stale)
}

async fn write_update(transaction: &DatabaseTransaction, update: &Update<'_>) -> Result<(), StoreError> {
    let entry = &update.restore.entry;
    let order = &entry.order;
    let mut change = order::Entity::update_many()
        .col_expr(order::Column::Status, Expr::val(entry.status.as_str()))
        .col_expr(order::Column::UserId, Expr::val(order.user.as_str()))
        .col_expr(order::Column::Version, Expr::val(entry.version))
        .col_expr(order::Column::UpdatedAtMs, Expr::val(entry.updated_at.0))
        .col_expr(order::Column::PayByMs, Expr::val(entry.pay_by.map(|at| at.0)));
    let ends = update.was_live && !entry.status.is_live();
    if ends {
        change = change.col_expr(order::Column::LiveKey, Expr::val(Option::<String>::None));
    }
    let changed = change
        .filter(order::Column::Id.eq(order.id.uuid()))
        .filter(order::Column::Version.eq(update.version))
        .exec(transaction)
        .await?;
    if changed.rows_affected != 1 {
        return Err(StoreError::Away("lost a race with another change of the same order".into()));
    }
    if !ends {
        return Ok(());
    }
    let units = i64::from(order.quantity);
    user_units::Entity::update_many()
        .col_expr(user_units::Column::Units, Expr::col(user_units::Column::Units).sub(units))
        .filter(user_units::Column::SaleId.eq(order.sale.as_str()))
        .filter(user_units::Column::UserId.eq(order.user.as_str()))
        .exec(transaction)
        .await?;
    item::Entity::update_many()
        .col_expr(item::Column::Sold, Expr::col(item::Column::Sold).sub(units))
        .filter(item::Column::SaleId.eq(order.sale.as_str()))
        .filter(item::Column::Sku.eq(order.sku.as_str()))
        .exec(transaction)
        .await?;
    Ok(())
}

async fn insert_sale(transaction: &DatabaseTransaction, entry: &SaleEntry) -> Result<(), StoreError> {
    let row = sale::ActiveModel {
        id: Set(entry.sale_id.to_string()),
        state: Set(entry.state.as_str().into()),
        rules_version: Set(entry.rules_version),
        told_epoch: Set(0),
        told_seq: Set(0),
        epoch: Set(entry.number.epoch),
        seq: Set(entry.number.seq),
        created_at_ms: Set(entry.created_at.0),
        ..terms_of(&entry.terms())
    };
    sale::Entity::insert(row).exec_without_returning(transaction).await?;
    for item in &entry.items {
        insert_item(transaction, entry, &item.sku).await?;
    }
    Ok(())
}

async fn insert_item(
    transaction: &DatabaseTransaction,
    entry: &SaleEntry,
    sku: &crate::domain::Sku,
) -> Result<(), StoreError> {
    let Some(item) = entry.items.iter().find(|item| item.sku == *sku) else { return Ok(()) };
    let row = item::ActiveModel {
        sale_id: Set(entry.sale_id.to_string()),
        sku: Set(item.sku.to_string()),
        stock: Set(item.stock),
        sold: Set(0),
        version: Set(item.version),
        limit_per_user: Set(item.limit_per_user.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX))),
    };
    item::Entity::insert(row).exec_without_returning(transaction).await?;
    Ok(())
}

async fn update_sale(
    transaction: &DatabaseTransaction,
    entry: &SaleEntry,
    row: &sale::Model,
) -> Result<bool, StoreError> {
    let id = entry.sale_id.as_str();
    let newer_terms = entry.rules_version > row.rules_version;
    let archived = row.state == SaleState::Archived.as_str();
    let newer_state = !archived && (entry.number.epoch, entry.number.seq) > (row.epoch, row.seq);
    let mut changed = newer_terms || newer_state;
    if newer_terms {
        let terms = sale::ActiveModel { rules_version: Set(entry.rules_version), ..terms_of(&entry.terms()) };
        sale::Entity::update_many().set(terms).filter(sale::Column::Id.eq(id)).exec(transaction).await?;
    }
    if newer_state {
        sale::Entity::update_many()
            .col_expr(sale::Column::State, Expr::val(entry.state.as_str()))
            .col_expr(sale::Column::Epoch, Expr::val(entry.number.epoch))
            .col_expr(sale::Column::Seq, Expr::val(entry.number.seq))
            .filter(sale::Column::Id.eq(id))
            .exec(transaction)
            .await?;
    }
    let rows = item::Entity::find().filter(item::Column::SaleId.eq(id)).all(transaction).await?;
    for item in &entry.items {
        let Some(row) = rows.iter().find(|row| row.sku == item.sku.as_str()) else {
            insert_item(transaction, entry, &item.sku).await?;
            changed = true;
            continue;
        };
        // Units are taken away in two steps under one version: the lower stock is the later.
        let newer = item.version > row.version || (item.version == row.version && item.stock < row.stock);
        let mut update = item::Entity::update_many();
        if newer {
            update = update
                .col_expr(item::Column::Stock, Expr::val(item.stock))
                .col_expr(item::Column::Version, Expr::val(item.version));
        }
        if newer_terms {
            let limit = item.limit_per_user.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX));
            update = update.col_expr(item::Column::LimitPerUser, Expr::val(limit));
        }
        if newer || newer_terms {
            changed = true;
            update
                .filter(item::Column::SaleId.eq(id))
                .filter(item::Column::Sku.eq(item.sku.as_str()))
                .exec(transaction)
                .await?;
        }
    }
    Ok(changed)
}
