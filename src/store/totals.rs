//! Sums over a sale's orders, for the audit.

use std::collections::BTreeMap;

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{ColumnTrait as _, EntityTrait as _, QueryFilter as _, QuerySelect as _};

use super::entities::order;
use super::{Store, StoreError};
use crate::domain::{OrderStatus, SaleId, Sku, UserId};

#[derive(Debug, Clone, Default)]
pub struct Totals {
    pub live_orders: u64,
    pub failed_orders: u64,
    pub live_units: BTreeMap<Sku, i64>,
    pub users_over_limit: Vec<UserId>,
}

impl Store {
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
            let mut totals = Totals::default();
            for (sku, status, count, units) in sums {
                let unreadable = |_| StoreError::unreadable("an order", (&sku, &status));
                let status: OrderStatus = status.parse().map_err(unreadable)?;
                let count = u64::try_from(count).unwrap_or(0);
                if status.is_live() {
                    totals.live_orders += count;
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
