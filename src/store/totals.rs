//! Sums over a sale's orders, for the audit.

use std::collections::{BTreeMap, HashSet};

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait as _, IsolationLevel,
    PaginatorTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _, TransactionOptions,
    TransactionTrait as _,
};

use super::entities::{gate_return, order, payment_event, sale_act};
use super::many::is_one_of;
use super::payments::PaymentState;
use super::sales::{SaleRow, read_sale_by};
use super::{Store, StoreError};
use crate::domain::{Millis, OrderId, OrderStatus, SaleId, Sku, UserId};

#[derive(Debug, Clone, Default)]
pub struct Totals {
    pub live_orders: u64,
    /// Those of them that wait for their payment.
    pub unpaid_orders: u64,
    pub failed_orders: u64,
    pub live_units: BTreeMap<Sku, i64>,
    /// Units of ended orders that the gate has not been told of yet.
    pub returning_units: BTreeMap<Sku, i64>,
    pub users_over_limit: Vec<UserId>,
}

/// A sale's books in the database at one moment.
#[derive(Debug, Clone)]
pub struct SaleSnapshot {
    /// Those of the orders asked for that have a row.
    pub recorded: HashSet<OrderId>,
    pub row: SaleRow,
    pub totals: Totals,
    /// A change of stock is under way.
    pub is_restocked: bool,
}

/// What waits, in all sales, with the time of the oldest.
#[derive(Debug, Clone, Default)]
pub struct Backlog {
    /// Ended orders whose units the gate may not have.
    pub returns: u64,
    pub oldest_return: Option<Millis>,
    /// Orders whose time to be paid is over.
    pub overdue: u64,
    pub pending_payments: u64,
    /// Payments that have to go back.
    pub late_payments: u64,
    /// Acts upon sales that are not known to be done.
    pub pending_acts: u64,
}

impl Store {
    /// A few counts by index; for gauges.
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
                    .filter(sale_act::Column::State.eq("pending"))
                    .count(&self.db)
                    .await?,
            })
        })
        .await
    }

    /// The sums over a sale's orders, its row, and which of some orders have a row: all as they were at one
    /// moment. `None` where there is no such sale.
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
                .filter(sale_act::Column::State.eq("pending"))
                .count(&transaction)
                .await?;
            let totals = self.totals_in(&transaction, sale).await?;
            Ok(Some(SaleSnapshot { recorded, row, totals, is_restocked: changes > 0 }))
        };
        let books = self.within(books).await;
        let _ = transaction.rollback().await;
        books
    }

    /// What is read in it is of one moment.
    async fn begin_snapshot(&self) -> Result<DatabaseTransaction, StoreError> {
        let options = TransactionOptions {
            isolation_level: (self.db.get_database_backend() != DbBackend::Sqlite)
                .then_some(IsolationLevel::RepeatableRead),
            access_mode: None,
            sqlite_transaction_mode: None,
        };
        Ok(self.db.begin_with_options(options).await?)
    }

    pub async fn totals(&self, sale: &SaleId) -> Result<Totals, StoreError> {
        self.within(self.totals_in(&self.db, sale)).await
    }

    async fn totals_in(
        &self,
        connection: &impl ConnectionTrait,
        sale: &SaleId,
    ) -> Result<Totals, StoreError> {
        let orders = || order::Entity::find().filter(order::Column::SaleId.eq(sale.as_str()));
        // SUM of integers is a decimal on some databases: as a bigint it is the same on all.
        let bigint = if self.engine() == "mysql" { "SIGNED" } else { "BIGINT" };
        let units = || Expr::col(order::Column::Quantity).sum().cast_as(bigint);
        let sums: Vec<(String, String, i64, i64)> = orders()
            .select_only()
            .column(order::Column::Sku)
            .column(order::Column::Status)
            .column_as(order::Column::Id.count(), "orders")
            .column_as(units(), "units")
            .group_by(order::Column::Sku)
            .group_by(order::Column::Status)
            .into_tuple()
            .all(connection)
            .await?;
        let over: Vec<String> = orders()
            .select_only()
            .column(order::Column::UserId)
            .filter(order::Column::LiveKey.is_not_null())
            .group_by(order::Column::UserId)
            .having(units().gt(Expr::col(order::Column::LimitPerUser).max().cast_as(bigint)))
            .into_tuple()
            .all(connection)
            .await?;
        let returning: Vec<(String, i64)> = gate_return::Entity::find()
            .filter(gate_return::Column::SaleId.eq(sale.as_str()))
            .select_only()
            .column(gate_return::Column::Sku)
            .column_as(Expr::col(gate_return::Column::Quantity).sum().cast_as(bigint), "units")
            .group_by(gate_return::Column::Sku)
            .into_tuple()
            .all(connection)
            .await?;
        let mut totals = Totals::default();
        for (sku, units) in returning {
            let sku = sku.parse().map_err(|_| StoreError::unreadable("a sku", &sku))?;
            totals.returning_units.insert(sku, units);
        }
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
        for user in over {
            let user = user.parse().map_err(|_| StoreError::unreadable("a user", &user))?;
            totals.users_over_limit.push(user);
        }
        Ok(totals)
    }
}
