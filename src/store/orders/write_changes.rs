//! Writing the changes that the orders' states allow.

use std::collections::BTreeMap;

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};
use uuid::Uuid;

use super::counters::lower_sold;
use super::history::event;
use super::read::OrderRow;
use super::returns::return_row;
use crate::domain::{Act, ActRequest, Millis, OrderId, OrderStatus, SaleId};
use crate::store::entities::{order, user_units};
use crate::store::error::StoreError;
use crate::store::log_outbox::{Touched, log};
use crate::store::many::{insert_new, is_one_of};

/// A change of one order, with who requests it and why.
#[derive(Debug, Clone)]
pub struct Change {
    /// The order.
    pub id: OrderId,
    /// The act to apply.
    pub act: Act,
    /// Who requests it, and why.
    pub asked: ActRequest,
    /// The fencing token of the lease under which it is made.
    pub fence: i64,
}

/// A change that the order's state allows.
pub(in crate::store) struct Planned<'a> {
    /// Its place among the answers.
    pub(in crate::store) at: usize,
    pub(in crate::store) change: &'a Change,
    /// The row before the change.
    pub(in crate::store) row: OrderRow,
    pub(in crate::store) now: Millis,
}

impl Planned<'_> {
    /// Units that the change frees.
    fn freed(&self) -> i64 {
        let ends = self.row.status.is_live() && !self.change.act.leads_to().is_live();
        if ends { i64::from(self.row.order.quantity) } else { 0 }
    }

    /// The row after the change.
    pub(in crate::store) fn changed(&self) -> OrderRow {
        OrderRow {
            status: self.change.act.leads_to(),
            updated_at: self.now,
            pay_by: None,
            version: self.row.version + 1,
            ..self.row.clone()
        }
    }
}

/// Records the tokens and lowers the users' units. Returns the places of changes whose token is lower than one that has
/// already written for the user.
pub(super) async fn fence(
    transaction: &DatabaseTransaction,
    planned: &[Planned<'_>],
) -> Result<Vec<usize>, StoreError> {
    let mut sales: BTreeMap<&SaleId, BTreeMap<&str, Vec<&Planned<'_>>>> = BTreeMap::new();
    for change in planned {
        let users = sales.entry(&change.row.order.sale).or_default();
        users.entry(change.row.order.user.as_str()).or_default().push(change);
    }
    let mut stale = Vec::new();
    for (sale, users) in sales {
        // Several users are locked in a fixed order first. Of one, the update alone says whether its token counts.
        let held = match users.len() {
            1 => None,
            _ => Some(lock_users(transaction, sale, users.keys().copied()).await?),
        };
        let mut writes: BTreeMap<(i64, i64), Vec<&str>> = BTreeMap::new();
        for (user, changes) in &users {
            let Some(token) = changes.iter().map(|change| change.change.fence).max() else { continue };
            let counts = held.as_ref().is_none_or(|held| held.get(*user).is_some_and(|last| *last <= token));
            if !counts {
                stale.extend(changes.iter().map(|change| change.at));
                continue;
            }
            let units = changes.iter().map(|change| change.freed()).sum();
            writes.entry((token, units)).or_default().push(user);
        }
        for ((token, units), of) in writes {
            let updated = user_units::Entity::update_many()
                .col_expr(user_units::Column::Fence, Expr::val(token))
                .col_expr(user_units::Column::Units, Expr::col(user_units::Column::Units).sub(units))
                .filter(user_units::Column::SaleId.eq(sale.as_str()))
                .filter(is_one_of(transaction, user_units::Column::UserId, of))
                .filter(user_units::Column::Fence.lte(token))
                .exec(transaction)
                .await?;
            if held.is_none() && updated.rows_affected == 0 {
                stale.extend(users.values().flatten().map(|change| change.at));
            }
        }
    }
    Ok(stale)
}

/// The last token of each of these users, whose rows are locked.
async fn lock_users(
    transaction: &DatabaseTransaction,
    sale: &SaleId,
    users: impl Iterator<Item = &str>,
) -> Result<BTreeMap<String, i64>, StoreError> {
    let held = user_units::Entity::find()
        .filter(user_units::Column::SaleId.eq(sale.as_str()))
        .filter(is_one_of(transaction, user_units::Column::UserId, users))
        .order_by_asc(user_units::Column::UserId)
        .lock_exclusive()
        .all(transaction)
        .await?;
    Ok(held.into_iter().map(|held| (held.user_id, held.fence)).collect())
}

/// Writes the changes: their orders, history, log references, items and returns.
pub(in crate::store) async fn write(
    transaction: &DatabaseTransaction,
    planned: &[Planned<'_>],
) -> Result<(), StoreError> {
    let mut items: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    let mut touched: BTreeMap<&str, Vec<Touched>> = BTreeMap::new();
    let (mut events, mut returns) = (Vec::new(), Vec::new());
    for change in planned {
        let order = &change.row.order;
        events.push(event(&change.changed(), change.row.status, &change.change.asked));
        touched.entry(order.sale.as_str()).or_default().push(Touched::Order(order.id));
        if change.freed() > 0 {
            *items.entry((order.sale.as_str(), order.sku.as_str())).or_default() += change.freed();
            returns.push(return_row(order, change.now));
        }
    }
    update_orders(transaction, planned).await?;
    insert_new(transaction, events).await?;
    for (sale, orders) in touched {
        log(transaction, sale, orders).await?;
    }
    lower_sold(transaction, items).await?;
    insert_new(transaction, returns).await
}

/// Orders that change alike are updated in one statement.
async fn update_orders(transaction: &DatabaseTransaction, planned: &[Planned<'_>]) -> Result<(), StoreError> {
    let mut alike: BTreeMap<(&str, i32), (OrderStatus, Millis, Vec<Uuid>)> = BTreeMap::new();
    for change in planned {
        let to = change.change.act.leads_to();
        let (.., ids) =
            alike.entry((to.as_str(), change.row.version)).or_insert((to, change.now, Vec::new()));
        ids.push(change.row.order.id.uuid());
    }
    for ((_, version), (to, now, ids)) in alike {
        let mut update = order::Entity::update_many()
            .col_expr(order::Column::Status, Expr::val(to.as_str()))
            .col_expr(order::Column::Version, Expr::val(version + 1))
            .col_expr(order::Column::UpdatedAtMs, Expr::val(now.0))
            .col_expr(order::Column::PayByMs, Expr::val(Option::<i64>::None));
        if !to.is_live() {
            update = update.col_expr(order::Column::LiveKey, Expr::val(Option::<String>::None));
        }
        let all = ids.len() as u64;
        let updated = update
            .filter(is_one_of(transaction, order::Column::Id, ids))
            .filter(order::Column::Version.eq(version))
            .exec(transaction)
            .await?;
        if updated.rows_affected != all {
            return Err(StoreError::Away("lost a race with another change of the same order".into()));
        }
    }
    Ok(())
}
