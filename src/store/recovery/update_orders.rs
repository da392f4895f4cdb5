//! Updating rows that are older than their entries.

use std::collections::{BTreeMap, BTreeSet};

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};

use super::plan::Update;
use crate::domain::{Failure, Order, OrderId};
use crate::store::entities::{gate_return, item, order, user_units};
use crate::store::error::StoreError;
use crate::store::many::is_one_of;

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

/// Updates one order, and lowers the counters if it ends.
pub(super) async fn write_update(
    transaction: &DatabaseTransaction,
    update: &Update<'_>,
) -> Result<(), StoreError> {
    let entry = &update.restore.entry;
    let order = &entry.order;
    let mut change = order::Entity::update_many()
        .col_expr(order::Column::Status, Expr::val(entry.status.as_str()))
        .col_expr(order::Column::Failure, Expr::val(entry.failure.map(Failure::as_str)))
        .col_expr(order::Column::UserId, Expr::val(order.user.as_str()))
        .col_expr(order::Column::Version, Expr::val(entry.version))
        .col_expr(order::Column::UpdatedAtMs, Expr::val(entry.updated_at.0))
        .col_expr(order::Column::PayByMs, Expr::val(entry.pay_by.map(|at| at.0)));
    rename(transaction, order, &update.row.user_id).await?;
    let ends = update.was_live() && !entry.status.is_live();
    if ends {
        change = change.col_expr(order::Column::LiveKey, Expr::val(Option::<String>::None));
    }
    let changed = change
        .filter(order::Column::Id.eq(order.id.uuid()))
        .filter(order::Column::Version.eq(update.row.version))
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
