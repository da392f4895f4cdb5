//! Units of ended orders that still have to be returned to the gate.

use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, EntityTrait as _, PaginatorTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _,
};

use crate::domain::{Millis, Number, Order, OrderId, SaleId, UserId};
use crate::store::entities::gate_return;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::sales::record_number;

/// An ended order whose units the gate may not have back yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Return {
    /// The order.
    pub id: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// Its buyer.
    pub user: UserId,
    /// The line of the database in which this was read or committed, from [`Store::line`] before that.
    pub line: i64,
}

impl Store {
    /// Pending returns of all sales but `except`, oldest first.
    pub async fn pending_returns(&self, except: &[SaleId], limit: u64) -> Result<Vec<Return>, StoreError> {
        let line = self.line().await?;
        self.within(async {
            let rows = gate_return::Entity::find()
                .filter(gate_return::Column::SaleId.is_not_in(except.iter().map(SaleId::as_str)))
                .order_by_asc(gate_return::Column::AtMs)
                .order_by_asc(gate_return::Column::OrderId)
                .limit(limit)
                .all(&self.db)
                .await?;
            let readable = |row: gate_return::Model| {
                let (sale, user) = (row.sale_id.parse().ok(), row.user_id.parse().ok());
                let (Some(sale), Some(user)) = (sale, user) else {
                    // It must not keep the units of others.
                    tracing::error!(error = %StoreError::unreadable("a return", &row));
                    return None;
                };
                Some(Return { id: row.order_id.into(), sale, user, line })
            };
            Ok(rows.into_iter().filter_map(readable).collect())
        })
        .await
    }

    /// The orders of one sale whose returns are pending.
    pub async fn returning_orders(&self, sale: &SaleId) -> Result<Vec<OrderId>, StoreError> {
        self.within(async {
            let ids: Vec<uuid::Uuid> = gate_return::Entity::find()
                .select_only()
                .column(gate_return::Column::OrderId)
                .filter(gate_return::Column::SaleId.eq(sale.as_str()))
                .into_tuple()
                .all(&self.db)
                .await?;
            Ok(ids.into_iter().map(OrderId::from).collect())
        })
        .await
    }

    /// Whether the return of this order is pending.
    pub async fn is_returning(&self, id: OrderId) -> Result<bool, StoreError> {
        let row = gate_return::Entity::find_by_id(id.uuid());
        self.within(async { Ok(row.one(&self.db).await?.is_some()) }).await
    }

    /// How many returns of one sale are pending.
    pub async fn count_returns(&self, sale: &SaleId) -> Result<u64, StoreError> {
        self.within(async {
            let waiting = gate_return::Entity::find().filter(gate_return::Column::SaleId.eq(sale.as_str()));
            Ok(waiting.count(&self.db).await?)
        })
        .await
    }

    /// Finishes returns of one sale: the gate has taken the units of these orders back, and had this number then. May
    /// be repeated.
    ///
    /// The sale keeps the number, so that a Redis that comes back without the return is found to be behind.
    pub async fn finish_returns(
        &self,
        sale: &SaleId,
        number: Number,
        ids: &[OrderId],
    ) -> Result<(), StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            record_number(&transaction, sale, number).await?;
            gate_return::Entity::delete_many()
                .filter(is_one_of(&transaction, gate_return::Column::OrderId, ids.iter().map(|id| id.uuid())))
                .exec(&transaction)
                .await?;
            self.commit(transaction, &[sale.as_str()]).await?;
            Ok(())
        })
        .await
    }
}

/// The row of a return. The process that ends the order returns its units; if it dies, maintenance does.
pub(in crate::store) fn return_row(order: &Order, at: Millis) -> gate_return::ActiveModel {
    gate_return::ActiveModel {
        order_id: Set(order.id.uuid()),
        sale_id: Set(order.sale.to_string()),
        user_id: Set(order.user.to_string()),
        sku: Set(order.sku.to_string()),
        quantity: Set(i32::try_from(order.quantity).unwrap_or(i32::MAX)),
        at_ms: Set(at.0),
    }
}
