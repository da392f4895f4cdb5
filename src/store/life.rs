//! What becomes of an order after its row is there. One transaction per batch of changes: the orders'
//! states, the units of their users and items, a row of history each, and the units that the gate
//! has to be told of. So a unit moves once, whatever dies afterwards.

use std::collections::BTreeMap;

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _,
};
use uuid::Uuid;

use super::entities::{gate_return, item, order, order_event, user_units};
use super::events::event;
use super::journal::{Touched, log};
use super::many::is_one_of;
use super::new_rows::ended_row;
use super::orders::{OrderRow, read_order};
use super::overdue::paying;
use super::record::Claim;
use super::{Store, StoreError};
use crate::domain::{Act, ActRequest, Millis, Order, OrderId, OrderStatus, SaleId};
use crate::fault::fault;

/// A change of one order, with who asks for it and why.
#[derive(Debug, Clone)]
pub struct Change {
    pub id: OrderId,
    pub act: Act,
    pub asked: ActRequest,
    /// The token of the lease under which it is made.
    pub fence: i64,
}

/// What came of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// Committed now.
    Now(OrderRow),
    /// It was made before; nothing was written.
    Already(OrderRow),
    /// There is no such arrow from the state that the row is in, or its time has not come; nothing
    /// was written.
    Refused(OrderRow),
    /// There is no row yet.
    NoRow,
    /// A holder with a higher token has written for this user: take the lease again.
    Stale,
}

impl Store {
    /// Makes changes of different orders, all in one transaction; the answers are in their order. May
    /// be repeated: what was made before is [`Changed::Already`]. What is `Now` is committed, and where
    /// an order's units are free again they are listed in [`Store::pending_returns`] until
    /// [`Store::finish_returns`] says that the gate has them.
    ///
    /// [`Act::Expire`] is refused until `pay_by` is over by the database's clock.
    ///
    /// `may_commit` is asked before COMMIT, as in [`Store::record`].
    pub async fn change(
        &self,
        changes: &[Change],
        may_commit: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Changed>, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let changed = self.try_changes(&transaction, changes).await?;
            if !changed.iter().any(|changed| matches!(changed, Changed::Now(_))) {
                transaction.rollback().await?;
                return Ok(changed);
            }
            fault!("end.before", return Err(StoreError::Away("injected".into())));
            if !may_commit() {
                transaction.rollback().await?;
                return Err(StoreError::LeaseEnded);
            }
            transaction.commit().await?;
            fault!("end.after", return Err(StoreError::Away("injected".into())));
            Ok(changed)
        })
        .await
    }

    /// Cancels an order that has no row yet: its row is written as cancelled, so that a late message
    /// meets it and changes nothing. `None` where a row is there by now: then [`Store::change`] it.
    ///
    /// Had the gate been one unit too high, the worker would have refused some order for it. A unit
    /// that is cancelled here is sold again, and then that order is the one that is refused: the
    /// database counts what is sold, whoever comes.
    pub async fn cancel_unrecorded(
        &self,
        claim: &Claim,
        asked: &ActRequest,
        may_commit: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<OrderRow>, StoreError> {
        self.end_unrecorded(claim, OrderStatus::Cancelled, asked, may_commit).await
    }

    /// The same with another end, for an order of which nobody but the gate knows.
    pub async fn end_unrecorded(
        &self,
        claim: &Claim,
        status: OrderStatus,
        asked: &ActRequest,
        may_commit: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<OrderRow>, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let attempt = Uuid::new_v4();
            let order = &claim.order;
            order::Entity::insert(ended_row(claim, status, attempt))
                .on_conflict(self.skip_duplicates())
                .exec_without_returning(&transaction)
                .await?;
            let row = order::Entity::find_by_id(order.id.uuid()).one(&transaction).await?;
            let Some(row) = row.filter(|row| row.attempt_id == Some(attempt)) else {
                // A worker was quicker, or the order's number is another's.
                transaction.rollback().await?;
                return Ok(None);
            };
            let row = read_order(row)?;
            let event = event(&row.order, OrderStatus::Accepted, row.status, 1, asked, row.updated_at);
            order_event::Entity::insert(event).exec_without_returning(&transaction).await?;
            gate_return::Entity::insert(owed(&row.order, row.updated_at))
                .exec_without_returning(&transaction)
                .await?;
            log(&transaction, order.sale.as_str(), [Touched::Order(order.id)]).await?;
            if !may_commit() {
                transaction.rollback().await?;
                return Err(StoreError::LeaseEnded);
            }
            transaction.commit().await?;
            fault!("cancel.after", return Err(StoreError::Away("injected".into())));
            Ok(Some(row))
        })
        .await
    }

    /// Locks as a batch of new orders does: orders, users, items, each kind in a fixed order.
    pub(super) async fn try_changes(
        &self,
        transaction: &DatabaseTransaction,
        changes: &[Change],
    ) -> Result<Vec<Changed>, StoreError> {
        let ids = changes.iter().map(|change| change.id.uuid());
        let rows = order::Entity::find()
            .filter(is_one_of(transaction, order::Column::Id, ids))
            .order_by_asc(order::Column::Id)
            .lock_exclusive()
            .all(transaction)
            .await?;
        let now = self.now(transaction).await?;
        let mut found = BTreeMap::new();
        for row in rows {
            let row = read_order(row)?;
            found.insert(row.order.id, row);
        }
        // Whoever paid in time must not lose his order because his payment waits for a server.
        let expiring: Vec<Uuid> = changes
            .iter()
            .filter(|change| change.act == Act::Expire)
            .map(|change| change.id.uuid())
            .collect();
        let paying = paying(transaction, expiring).await?;
        let mut answers = Vec::with_capacity(changes.len());
        let mut planned = Vec::new();
        for change in changes {
            let Some(row) = found.remove(&change.id) else {
                answers.push(Changed::NoRow);
                continue;
            };
            let too_early = change.act == Act::Expire && row.pay_by.is_none_or(|pay_by| pay_by > now);
            let too_early = too_early || paying.contains(&change.id.uuid());
            if row.status == change.act.leads_to() {
                answers.push(Changed::Already(row));
            } else if !row.status.allows(change.act) || too_early {
                answers.push(Changed::Refused(row));
            } else {
                planned.push(Planned { at: answers.len(), change, row });
                // Until the fence has spoken.
                answers.push(Changed::Stale);
            }
        }
        let stale = fence(transaction, &planned).await?;
        planned.retain(|planned| !stale.contains(&planned.at));
        if planned.is_empty() {
            return Ok(answers);
        }
        write(transaction, &planned, now).await?;
        for Planned { at, change, mut row, .. } in planned {
            (row.status, row.updated_at, row.pay_by) = (change.act.leads_to(), now, None);
            row.version += 1;
            answers[at] = Changed::Now(row);
        }
        Ok(answers)
    }
}

/// A change that the order's state allows.
struct Planned<'a> {
    /// Its place among the answers.
    at: usize,
    change: &'a Change,
    row: OrderRow,
}

impl Planned<'_> {
    /// Units that are free again.
    fn freed(&self) -> i64 {
        let ends = self.row.status.is_live() && !self.change.act.leads_to().is_live();
        if ends { i64::from(self.row.order.quantity) } else { 0 }
    }
}

/// Remembers the tokens and lowers the users' units; says whose token is lower than one that has
/// written for the user.
async fn fence(transaction: &DatabaseTransaction, planned: &[Planned<'_>]) -> Result<Vec<usize>, StoreError> {
    let mut sales: BTreeMap<&SaleId, BTreeMap<&str, Vec<&Planned<'_>>>> = BTreeMap::new();
    for change in planned {
        let users = sales.entry(&change.row.order.sale).or_default();
        users.entry(change.row.order.user.as_str()).or_default().push(change);
    }
    let mut stale = Vec::new();
    for (sale, users) in sales {
        let held = user_units::Entity::find()
            .filter(user_units::Column::SaleId.eq(sale.as_str()))
            .filter(is_one_of(transaction, user_units::Column::UserId, users.keys().copied()))
            .order_by_asc(user_units::Column::UserId)
            .lock_exclusive()
            .all(transaction)
            .await?;
        let mut writes: BTreeMap<(i64, i64), Vec<&str>> = BTreeMap::new();
        for (user, changes) in &users {
            let Some(token) = changes.iter().map(|change| change.change.fence).max() else { continue };
            let last = held.iter().find(|held| held.user_id == **user).map(|held| held.fence);
            if last.is_none_or(|last| last > token) {
                stale.extend(changes.iter().map(|change| change.at));
                continue;
            }
            let units = changes.iter().map(|change| change.freed()).sum();
            writes.entry((token, units)).or_default().push(user);
        }
        for ((token, units), users) in writes {
            user_units::Entity::update_many()
                .col_expr(user_units::Column::Fence, Expr::val(token))
                .col_expr(user_units::Column::Units, Expr::col(user_units::Column::Units).sub(units))
                .filter(user_units::Column::SaleId.eq(sale.as_str()))
                .filter(is_one_of(transaction, user_units::Column::UserId, users))
                .exec(transaction)
                .await?;
        }
    }
    Ok(stale)
}

async fn write(
    transaction: &DatabaseTransaction,
    planned: &[Planned<'_>],
    now: Millis,
) -> Result<(), StoreError> {
    let mut alike: BTreeMap<(&str, i32), Vec<Uuid>> = BTreeMap::new();
    let mut items: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    let (mut events, mut owing) = (Vec::new(), Vec::new());
    for change in planned {
        let (order, to) = (&change.row.order, change.change.act.leads_to());
        alike.entry((to.as_str(), change.row.version)).or_default().push(order.id.uuid());
        events.push(event(order, change.row.status, to, change.row.version + 1, &change.change.asked, now));
        if change.freed() > 0 {
            *items.entry((order.sale.as_str(), order.sku.as_str())).or_default() += change.freed();
            owing.push(owed(order, now));
        }
    }
    for ((to, version), ids) in alike {
        let mut update = order::Entity::update_many()
            .col_expr(order::Column::Status, Expr::val(to))
            .col_expr(order::Column::Version, Expr::val(version + 1))
            .col_expr(order::Column::UpdatedAtMs, Expr::val(now.0))
            .col_expr(order::Column::PayByMs, Expr::val(Option::<i64>::None));
        if to.parse().is_ok_and(|to: OrderStatus| !to.is_live()) {
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
    order_event::Entity::insert_many(events).exec_without_returning(transaction).await?;
    let mut touched: BTreeMap<&str, Vec<Touched>> = BTreeMap::new();
    for Planned { row, .. } in planned {
        touched.entry(row.order.sale.as_str()).or_default().push(Touched::Order(row.order.id));
    }
    for (sale, orders) in touched {
        log(transaction, sale, orders).await?;
    }
    for ((sale, sku), units) in items {
        item::Entity::update_many()
            .col_expr(item::Column::Sold, Expr::col(item::Column::Sold).sub(units))
            .filter(item::Column::SaleId.eq(sale))
            .filter(item::Column::Sku.eq(sku))
            .exec(transaction)
            .await?;
    }
    if !owing.is_empty() {
        gate_return::Entity::insert_many(owing).exec_without_returning(transaction).await?;
    }
    Ok(())
}

/// The gate has to be told, by whoever made the change or, if he dies, by the upkeep.
pub(super) fn owed(order: &Order, at: Millis) -> gate_return::ActiveModel {
    gate_return::ActiveModel {
        order_id: Set(order.id.uuid()),
        sale_id: Set(order.sale.to_string()),
        user_id: Set(order.user.to_string()),
        sku: Set(order.sku.to_string()),
        quantity: Set(i32::try_from(order.quantity).unwrap_or(i32::MAX)),
        at_ms: Set(at.0),
    }
}
