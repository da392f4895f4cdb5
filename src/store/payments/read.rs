//! Reading payment events.

use std::collections::BTreeMap;

use sea_orm::sea_query::{Expr, ExprTrait as _, Query};
use sea_orm::{
    ColumnTrait as _, Condition, EntityTrait as _, PaginatorTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};

use super::event::{Payment, read_payment};
use crate::domain::{OrderId, SaleId};
use crate::store::entities::{order, payment_event};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::states::PaymentState;

impl Store {
    /// An event; `None` if it was never recorded.
    pub async fn payment(&self, provider: &str, event_id: &str) -> Result<Option<Payment>, StoreError> {
        let id = (provider.to_owned(), event_id.to_owned());
        self.within(async {
            payment_event::Entity::find_by_id(id).one(&self.db).await?.map(read_payment).transpose()
        })
        .await
    }

    /// The payments and refunds of many orders in one query, oldest first. Orders without any are left out.
    pub async fn payments_of(
        &self,
        orders: &[OrderId],
    ) -> Result<BTreeMap<OrderId, Vec<Payment>>, StoreError> {
        let mut payments: BTreeMap<OrderId, Vec<Payment>> = BTreeMap::new();
        if orders.is_empty() {
            return Ok(payments);
        }
        self.within(async {
            let ids = orders.iter().map(|id| id.uuid());
            let rows = payment_event::Entity::find()
                .filter(is_one_of(&self.db, payment_event::Column::OrderId, ids))
                .order_by_asc(payment_event::Column::ReceivedAtMs)
                .all(&self.db)
                .await?;
            for row in rows {
                payments.entry(row.order_id.into()).or_default().push(read_payment(row)?);
            }
            Ok(payments)
        })
        .await
    }

    /// How many events that name a sale, or an order of it, are pending, or leave money to refund.
    pub async fn count_payments_owed(&self, sale: &SaleId) -> Result<u64, StoreError> {
        let orders = Query::select()
            .column(order::Column::Id)
            .from(order::Entity)
            .and_where(order::Column::SaleId.eq(sale.as_str()))
            .to_owned();
        let of_sale = Condition::any()
            .add(payment_event::Column::SaleId.eq(sale.as_str()))
            .add(payment_event::Column::OrderId.in_subquery(orders));
        self.within(async {
            let is_owed = payment_event::Column::State.is_in(PaymentState::OWED.map(PaymentState::as_str));
            Ok(payment_event::Entity::find().filter(of_sale).filter(is_owed).count(&self.db).await?)
        })
        .await
    }

    /// Pending events of all sales but `except` whose next try is due by the database's clock, longest due first. One that
    /// cannot be read is logged and left out.
    pub async fn payments_due(&self, except: &[SaleId], limit: u64) -> Result<Vec<Payment>, StoreError> {
        self.within(async {
            let rows = payment_event::Entity::find()
                .filter(payment_event::Column::State.eq(PaymentState::Pending.as_str()))
                .filter(payment_event::Column::SaleId.is_not_in(except.iter().map(SaleId::as_str)))
                .filter(Expr::col(payment_event::Column::DueAtMs).lte(self.clock()))
                .order_by_asc(payment_event::Column::DueAtMs)
                .limit(limit)
                .all(&self.db)
                .await?;
            let readable = |row| read_payment(row).inspect_err(|error| tracing::error!(%error)).ok();
            Ok(rows.into_iter().filter_map(readable).collect())
        })
        .await
    }

    /// Events in one state, newest first.
    pub async fn payments(&self, state: PaymentState, limit: u64) -> Result<Vec<Payment>, StoreError> {
        self.within(async {
            let rows = payment_event::Entity::find()
                .filter(payment_event::Column::State.eq(state.as_str()))
                .order_by_desc(payment_event::Column::ReceivedAtMs)
                .limit(limit)
                .all(&self.db)
                .await?;
            rows.into_iter().map(read_payment).collect()
        })
        .await
    }
}
