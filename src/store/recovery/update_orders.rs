//! Updating rows that are older than their entries: a few statements for any number of rows, because each one is a round
//! trip.

use std::collections::{BTreeMap, BTreeSet};

use sea_orm::sea_query::{Expr, ExprTrait as _, OnConflict};
use sea_orm::{
    ActiveModelTrait as _, ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _,
    IntoActiveModel as _, QueryFilter as _, QueryOrder as _, QuerySelect as _,
};

use super::plan::Update;
use crate::domain::{Failure, Order, OrderId};
use crate::store::entities::{gate_return, order, user_units};
use crate::store::error::StoreError;
use crate::store::many::{OnExisting, insert_many, is_one_of};
use crate::store::orders;

/// Locks the users' rows, and returns the orders for whose user a higher token has written.
pub(super) async fn stale(
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
            .filter(is_one_of(transaction, user_units::Column::UserId, users))
            .order_by_asc(user_units::Column::UserId)
            .lock_exclusive()
            .all(transaction)
            .await?;
        let fences: BTreeMap<&str, i64> =
            held.iter().map(|held| (held.user_id.as_str(), held.fence)).collect();
        for update in updates {
            let order = &update.restore.entry.order;
            if fences.get(order.user.as_str()).is_some_and(|fence| *fence > update.restore.fence) {
                stale.insert(order.id);
            }
        }
    }
    Ok(stale)
}

/// Updates the orders, which must be locked, and lowers the units of the users whose orders end.
pub(super) async fn write_updates(
    transaction: &DatabaseTransaction,
    updates: &[Update<'_>],
) -> Result<(), StoreError> {
    for update in updates {
        rename(transaction, &update.restore.entry.order, &update.row.user_id).await?;
    }
    // The rows exist, so that nothing is inserted: it is an UPDATE with a row of values for each order.
    let existing = OnExisting {
        conflict: OnConflict::column(order::Column::Id)
            .update_columns([
                order::Column::UserId,
                order::Column::Status,
                order::Column::Failure,
                order::Column::LiveKey,
                order::Column::Version,
                order::Column::UpdatedAtMs,
                order::Column::PayByMs,
            ])
            .to_owned(),
        postgres: "(id) DO UPDATE SET user_id = excluded.user_id, status = excluded.status, \
                   failure = excluded.failure, live_key = excluded.live_key, version = excluded.version, \
                   updated_at_ms = excluded.updated_at_ms, pay_by_ms = excluded.pay_by_ms",
    };
    insert_many(transaction, updates.iter().map(updated_row).collect(), &existing).await?;

    let mut freed: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for order in updates.iter().filter(|update| update.ends()).map(|update| &update.restore.entry.order) {
        *freed.entry((order.sale.as_str(), order.user.as_str())).or_default() += i64::from(order.quantity);
    }
    let mut alike: BTreeMap<(&str, i64), Vec<&str>> = BTreeMap::new();
    for ((sale, user), units) in freed {
        alike.entry((sale, units)).or_default().push(user);
    }
    for ((sale, units), users) in alike {
        user_units::Entity::update_many()
            .col_expr(user_units::Column::Units, Expr::col(user_units::Column::Units).sub(units))
            .filter(user_units::Column::SaleId.eq(sale))
            .filter(is_one_of(transaction, user_units::Column::UserId, users))
            .exec(transaction)
            .await?;
    }
    Ok(())
}

/// Lowers the counters of the items whose orders end. Call it last, because other transactions wait for these rows.
pub(super) async fn lower_sold(
    transaction: &DatabaseTransaction,
    updates: &[Update<'_>],
) -> Result<(), StoreError> {
    let mut items: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for order in updates.iter().filter(|update| update.ends()).map(|update| &update.restore.entry.order) {
        *items.entry((order.sale.as_str(), order.sku.as_str())).or_default() += i64::from(order.quantity);
    }
    orders::lower_sold(transaction, items).await
}

/// The row as its entry has it.
fn updated_row(update: &Update<'_>) -> order::ActiveModel {
    let entry = &update.restore.entry;
    let mut row = update.row.clone().into_active_model().reset_all();
    row.user_id = Set(entry.order.user.to_string());
    row.status = Set(entry.status.as_str().into());
    row.failure = Set(entry.failure.map(|failure| Failure::as_str(failure).into()));
    row.version = Set(entry.version);
    row.updated_at_ms = Set(entry.updated_at.0);
    row.pay_by_ms = Set(entry.pay_by.map(|at| at.0));
    if update.ends() {
        row.live_key = Set(None);
    }
    row
}

/// A person may have been erased since: their old name must not stay with their units.
async fn rename(transaction: &DatabaseTransaction, order: &Order, from: &str) -> Result<(), StoreError> {
    let to = order.user.as_str();
    let key = (order.sale.to_string(), to.to_owned());
    if from == to || user_units::Entity::find_by_id(key).one(transaction).await?.is_some() {
        return Ok(());
    }
    user_units::Entity::update_many()
        .col_expr(user_units::Column::UserId, Expr::val(to))
        .filter(user_units::Column::SaleId.eq(order.sale.as_str()))
        .filter(user_units::Column::UserId.eq(from))
        .exec(transaction)
        .await?;
    gate_return::Entity::update_many()
        .col_expr(gate_return::Column::UserId, Expr::val(to))
        .filter(gate_return::Column::OrderId.eq(order.id.uuid()))
        .exec(transaction)
        .await?;
    Ok(())
}
