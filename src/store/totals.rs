//! Sums over a sale's orders, for the audit.

use std::collections::BTreeMap;

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ColumnTrait as _, EntityTrait as _, PaginatorTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};

use super::entities::{gate_return, order, payment_event, sale_act};
use super::payments::PaymentState;
use super::{Store, StoreError};
use crate::domain::{Millis, OrderStatus, SaleId, Sku, UserId};

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

/// What waits, in all sales, with the time of the oldest.
#[derive(Debug, Clone, Default)]
pub struct Waiting {
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
    pub async fn waiting(&self) -> Result<Waiting, StoreError> {
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
            Ok(Waiting {
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

    pub async fn totals(&self, sale: &SaleId) -> Result<Totals, StoreError> {
        let orders = || order::Entity::find().filter(order::Column::SaleId.eq(sale.as_str()));
        // SUM of integers is a decimal on some databases: as a bigint it is the same on all.
        let bigint = if self.kind() == "mysql" { "SIGNED" } else { "BIGINT" };
        let units = || Expr::col(order::Column::Quantity).sum().cast_as(bigint);
        self.within(async {
            let sums: Vec<(String, String, i64, i64)> = orders()
                .select_only()
                .column(order::Column::Sku)
                .column(order::Column::Status)
                .column_as(order::Column::Id.count(), "orders")
                .column_as(units(), "units")
                .group_by(order::Column::Sku)
                .group_by(order::Column::Status)
                .into_tuple()
                .all(&self.db)
                .await?;
            let over: Vec<String> = orders()
                .select_only()
                .column(order::Column::UserId)
                .filter(order::Column::LiveKey.is_not_null())
                .group_by(order::Column::UserId)
                .having(units().gt(Expr::col(order::Column::LimitPerUser).max().cast_as(bigint)))
                .into_tuple()
                .all(&self.db)
                .await?;
            let returning: Vec<(String, i64)> = gate_return::Entity::find()
                .filter(gate_return::Column::SaleId.eq(sale.as_str()))
                .select_only()
                .column(gate_return::Column::Sku)
                .column_as(Expr::col(gate_return::Column::Quantity).sum().cast_as(bigint), "units")
                .group_by(gate_return::Column::Sku)
                .into_tuple()
                .all(&self.db)
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
        })
        .await
    }
}
