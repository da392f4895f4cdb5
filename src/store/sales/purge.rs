//! Deleting the orders of an archived sale.

use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait as _, EntityTrait as _, PaginatorTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};
use uuid::Uuid;

use crate::domain::SaleId;
use crate::store::entities::{gate_return, item, order, order_event, payment_event, user_units};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::states::PaymentState;

/// Orders deleted in one transaction.
const CHUNK: u64 = 1_000;

/// What a purge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purged {
    /// Orders that were deleted.
    pub orders: u64,
    /// Payments of the next orders that are pending, or leave money to refund. If there are any, the purge ended there.
    pub owed: u64,
}

impl Store {
    /// Deletes the orders of a sale and everything that belongs to them, a thousand at a time, but no payment that is owed.
    /// May be repeated.
    pub async fn purge_sale(&self, sale: &SaleId) -> Result<Purged, StoreError> {
        let mut purged = 0;
        loop {
            let Purged { orders, owed } = self.within(self.purge_some(sale)).await?;
            purged += orders;
            if orders == 0 {
                return Ok(Purged { orders: purged, owed });
            }
        }
    }

    async fn purge_some(&self, sale: &SaleId) -> Result<Purged, StoreError> {
        let transaction = self.begin().await?;
        let some: Vec<(Uuid, String)> = order::Entity::find()
            .select_only()
            .columns([order::Column::Id, order::Column::UserId])
            .filter(order::Column::SaleId.eq(sale.as_str()))
            .order_by_asc(order::Column::Id)
            .limit(CHUNK)
            // Orders are locked first, as in every change of orders.
            .lock_exclusive()
            .into_tuple()
            .all(&transaction)
            .await?;
        let (ids, users): (Vec<Uuid>, Vec<String>) = some.into_iter().unzip();
        // A payment that comes from now on waits for the lock, and then finds no order.
        let of_some = is_one_of(&transaction, payment_event::Column::OrderId, ids.iter().copied());
        let is_owed = payment_event::Column::State.is_in(PaymentState::OWED.map(PaymentState::as_str));
        let owed = payment_event::Entity::find().filter(of_some).filter(is_owed).count(&transaction).await?;
        if owed > 0 {
            transaction.rollback().await?;
            return Ok(Purged { orders: 0, owed });
        }
        order_event::Entity::delete_many()
            .filter(is_one_of(&transaction, order_event::Column::OrderId, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        payment_event::Entity::delete_many()
            .filter(is_one_of(&transaction, payment_event::Column::OrderId, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        gate_return::Entity::delete_many()
            .filter(is_one_of(&transaction, gate_return::Column::OrderId, ids.iter().copied()))
            .exec(&transaction)
            .await?;
        user_units::Entity::delete_many()
            .filter(user_units::Column::SaleId.eq(sale.as_str()))
            .filter(is_one_of(&transaction, user_units::Column::UserId, users))
            .exec(&transaction)
            .await?;
        // No order is left, so nothing is sold.
        item::Entity::update_many()
            .col_expr(item::Column::Sold, Expr::val(0_i64))
            .filter(item::Column::SaleId.eq(sale.as_str()))
            .exec(&transaction)
            .await?;
        let deleted = order::Entity::delete_many()
            .filter(is_one_of(&transaction, order::Column::Id, ids))
            .exec(&transaction)
            .await?;
        self.commit(transaction, &[sale.as_str()]).await?;
        Ok(Purged { orders: deleted.rows_affected, owed })
    }
}
