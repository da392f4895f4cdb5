//! Sums over a sale's orders for the audit, and counts for the gauges.

use std::collections::{BTreeMap, HashSet};

use sea_orm::sea_query::{Expr, ExprTrait as _, SimpleExpr};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, DbBackend, EntityTrait as _, PaginatorTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _, Select,
};

use crate::domain::{Millis, OrderId, OrderStatus, SaleId, Sku, UserId};
use crate::store::entities::{gate_return, order, payment_event, sale_act};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::sales::{SaleRow, read_sale_by};
use crate::store::states::{ActState, PaymentState};

/// Sums over a sale's orders.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Orders that hold units.
    pub live_orders: u64,
    /// Live orders that wait for their payment.
    pub unpaid_orders: u64,
    /// Orders that the database refused.
    pub failed_orders: u64,
    /// Units of live orders.
    pub live_units: BTreeMap<Sku, i64>,
    /// Units of ended orders whose returns to the gate are pending.
    pub returning_units: BTreeMap<Sku, i64>,
    /// Users whose live orders exceed the limit.
    pub users_over_limit: Vec<UserId>,
}

/// A sale in the database at one moment.
#[derive(Debug, Clone)]
pub struct SaleSnapshot {
    /// The requested orders that have a row.
    pub recorded: HashSet<OrderId>,
    /// The sale and its items.
    pub row: SaleRow,
    /// The sums over its orders.
    pub totals: Totals,
    /// Whether a change of stock is under way.
    pub is_restocked: bool,
}

/// Unfinished work in all sales.
#[derive(Debug, Clone, Default)]
pub struct Backlog {
    /// Ended orders whose units the gate may not have back.
    pub returns: u64,
    /// When the oldest of them ended.
    pub oldest_return: Option<Millis>,
    /// Orders past their payment deadline.
    pub overdue: u64,
    /// Payments that wait to be applied.
    pub pending_payments: u64,
    /// Payments to be refunded.
    pub late_payments: u64,
    /// Unfinished acts on sales.
    pub pending_acts: u64,
}

/// Orders and units by item and state.
type Sums = Vec<(String, String, i64, i64)>;

impl Store {
    /// Counts the unfinished work, each count by an index.
    pub async fn backlog(&self) -> Result<Backlog, StoreError> {
        let payments = |state: PaymentState| {
            payment_event::Entity::find()
                .filter(payment_event::Column::State.eq(state.as_str()))
                .count(&self.db)
        };
        self.within(async {
            let oldest: Option<i64> = gate_return::Entity::find()
                .select_only()
                .column(gate_return::Column::AtMs)
                .order_by_asc(gate_return::Column::AtMs)
                .into_tuple()
                .one(&self.db)
                .await?;
            Ok(Backlog {
                returns: gate_return::Entity::find().count(&self.db).await?,
                oldest_return: oldest.map(Millis),
                overdue: order::Entity::find()
                    .filter(Expr::col(order::Column::PayByMs).lte(self.clock()))
                    .count(&self.db)
                    .await?,
                pending_payments: payments(PaymentState::Pending).await?,
                late_payments: payments(PaymentState::Late).await?,
                pending_acts: sale_act::Entity::find()
                    .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
                    .count(&self.db)
                    .await?,
            })
        })
        .await
    }

    /// A sale's row, the sums over its orders, and which of these orders have a row, all at one moment. `None` if there
    /// is no such sale.
    pub async fn snapshot(&self, sale: &SaleId, ids: &[OrderId]) -> Result<Option<SaleSnapshot>, StoreError> {
        let transaction = self.within(self.begin_snapshot()).await?;
        let books = async {
            let mut recorded = HashSet::new();
            for ids in ids.chunks(1_000) {
                let found: Vec<uuid::Uuid> = order::Entity::find()
                    .select_only()
                    .column(order::Column::Id)
                    .filter(is_one_of(&transaction, order::Column::Id, ids.iter().map(|id| id.uuid())))
                    .into_tuple()
                    .all(&transaction)
                    .await?;
                recorded.extend(found.into_iter().map(OrderId::from));
            }
            let Some(row) = read_sale_by(&transaction, sale).await? else { return Ok(None) };
            let changes = sale_act::Entity::find()
                .filter(sale_act::Column::SaleId.eq(sale.as_str()))
                .filter(sale_act::Column::ItemVersion.is_not_null())
                .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
                .count(&transaction)
                .await?;
            let totals = self.totals_in(&transaction, sale).await?;
            Ok(Some(SaleSnapshot { recorded, row, totals, is_restocked: changes > 0 }))
        };
        let books = self.within(books).await;
        let _ = transaction.rollback().await;
        books
    }

    /// The sums over a sale's orders.
    pub async fn totals(&self, sale: &SaleId) -> Result<Totals, StoreError> {
        self.within(self.totals_in(&self.db, sale)).await
    }

    async fn totals_in(
        &self,
        connection: &impl ConnectionTrait,
        sale: &SaleId,
    ) -> Result<Totals, StoreError> {
        let sums = sums_by_status(connection, sale).await?;
        let over = users_over_limit(connection, sale).await?;
        let mut totals =
            Totals { returning_units: returning_units(connection, sale).await?, ..add_up(sums)? };
        for user in over {
            let user = user.parse().map_err(|_| StoreError::unreadable("a user", &user))?;
            totals.users_over_limit.push(user);
        }
        Ok(totals)
    }
}

fn orders_of(sale: &SaleId) -> Select<order::Entity> {
    order::Entity::find().filter(order::Column::SaleId.eq(sale.as_str()))
}

/// As a bigint: SUM of integers is a decimal on some databases.
fn bigint(connection: &impl ConnectionTrait, value: SimpleExpr) -> SimpleExpr {
    let bigint = if connection.get_database_backend() == DbBackend::MySql { "SIGNED" } else { "BIGINT" };
    value.cast_as(bigint)
}

async fn sums_by_status(connection: &impl ConnectionTrait, sale: &SaleId) -> Result<Sums, StoreError> {
    let units = bigint(connection, Expr::col(order::Column::Quantity).sum());
    let sums = orders_of(sale)
        .select_only()
        .column(order::Column::Sku)
        .column(order::Column::Status)
        .column_as(order::Column::Id.count(), "orders")
        .column_as(units, "units")
        .group_by(order::Column::Sku)
        .group_by(order::Column::Status)
        .into_tuple()
        .all(connection)
        .await?;
    Ok(sums)
}

async fn users_over_limit(
    connection: &impl ConnectionTrait,
    sale: &SaleId,
) -> Result<Vec<String>, StoreError> {
    let units = bigint(connection, Expr::col(order::Column::Quantity).sum());
    let limit = bigint(connection, Expr::col(order::Column::LimitPerUser).max());
    let over = orders_of(sale)
        .select_only()
        .column(order::Column::UserId)
        .filter(order::Column::LiveKey.is_not_null())
        .group_by(order::Column::UserId)
        .having(units.gt(limit))
        .into_tuple()
        .all(connection)
        .await?;
    Ok(over)
}

async fn returning_units(
    connection: &impl ConnectionTrait,
    sale: &SaleId,
) -> Result<BTreeMap<Sku, i64>, StoreError> {
    let units = bigint(connection, Expr::col(gate_return::Column::Quantity).sum());
    let returning: Vec<(String, i64)> = gate_return::Entity::find()
        .filter(gate_return::Column::SaleId.eq(sale.as_str()))
        .select_only()
        .column(gate_return::Column::Sku)
        .column_as(units, "units")
        .group_by(gate_return::Column::Sku)
        .into_tuple()
        .all(connection)
        .await?;
    returning
        .into_iter()
        .map(|(sku, units)| Ok((sku.parse().map_err(|_| StoreError::unreadable("a sku", &sku))?, units)))
        .collect()
}

fn add_up(sums: Sums) -> Result<Totals, StoreError> {
    let mut totals = Totals::default();
    for (sku, status, count, units) in sums {
        let unreadable = |_| StoreError::unreadable("an order", (&sku, &status));
        let status: OrderStatus = status.parse().map_err(unreadable)?;
        let count = u64::try_from(count).unwrap_or(0);
        if status.is_live() {
            totals.live_orders += count;
            if status == OrderStatus::Confirmed {
                totals.unpaid_orders += count;
            }
            *totals.live_units.entry(sku.parse().map_err(unreadable)?).or_default() += units;
        } else if status == OrderStatus::Failed {
            totals.failed_orders += count;
        }
    }
    Ok(totals)
}
