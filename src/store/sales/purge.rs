//! Deleting the orders of an archived sale.

use std::collections::{BTreeMap, BTreeSet};

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ColumnTrait as _, DatabaseTransaction, EntityTrait as _, FromQueryResult, PaginatorTrait as _,
    QueryFilter as _, QueryOrder as _, QuerySelect as _,
};
use uuid::Uuid;

use crate::domain::SaleId;
use crate::store::entities::{gate_return, item, order, order_event, payment_event, user_units};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::states::PaymentState;

/// Orders deleted in one transaction, or more if one user has more.
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
    /// May be repeated; if it ends half way, the books of what is left are right.
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
        let some = orders_of_some_users(&transaction, sale).await?;
        let ids: Vec<Uuid> = some.iter().map(|order| order.id).collect();
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
        let users = some.iter().map(|order| order.user_id.clone()).collect::<BTreeSet<_>>();
        user_units::Entity::delete_many()
            .filter(user_units::Column::SaleId.eq(sale.as_str()))
            .filter(is_one_of(&transaction, user_units::Column::UserId, users))
            .exec(&transaction)
            .await?;
        count_less(&transaction, sale, &some).await?;
        let deleted = order::Entity::delete_many()
            .filter(is_one_of(&transaction, order::Column::Id, ids))
            .exec(&transaction)
            .await?;
        self.commit(transaction, &[sale.as_str()]).await?;
        Ok(Purged { orders: deleted.rows_affected, owed })
    }
}

/// What a purge has to know of an order.
#[derive(FromQueryResult)]
struct Purgeable {
    id: Uuid,
    user_id: String,
    sku: String,
    quantity: i32,
    live_key: Option<String>,
}

/// About a thousand orders, locked: all those of some users, so that what is left of the sale is whole if the purge ends here.
async fn orders_of_some_users(
    transaction: &DatabaseTransaction,
    sale: &SaleId,
) -> Result<Vec<Purgeable>, StoreError> {
    let of_sale = order::Entity::find().filter(order::Column::SaleId.eq(sale.as_str()));
    let last: Option<String> = of_sale
        .clone()
        .select_only()
        .column(order::Column::UserId)
        .order_by_asc(order::Column::UserId)
        .offset(CHUNK - 1)
        .limit(1)
        .into_tuple()
        .one(transaction)
        .await?;
    let of_users = match last {
        Some(last) => of_sale.filter(order::Column::UserId.lte(last)),
        None => of_sale,
    };
    let some = of_users
        .select_only()
        .columns([order::Column::Id, order::Column::UserId, order::Column::Sku])
        .columns([order::Column::Quantity, order::Column::LiveKey])
        .order_by_asc(order::Column::Id)
        // Orders are locked first, as in every change of orders.
        .lock_exclusive()
        .into_model()
        .all(transaction)
        .await?;
    Ok(some)
}

/// These orders no longer count as sold; once none is left, nothing does.
async fn count_less(
    transaction: &DatabaseTransaction,
    sale: &SaleId,
    orders: &[Purgeable],
) -> Result<(), StoreError> {
    let mut units: BTreeMap<&str, i64> = BTreeMap::new();
    for order in orders.iter().filter(|order| order.live_key.is_some()) {
        *units.entry(&order.sku).or_default() += i64::from(order.quantity);
    }
    let of_sale = item::Entity::update_many().filter(item::Column::SaleId.eq(sale.as_str()));
    if orders.is_empty() {
        of_sale.col_expr(item::Column::Sold, Expr::val(0_i64)).exec(transaction).await?;
        return Ok(());
    }
    for (sku, units) in units {
        let sold = || Expr::col(item::Column::Sold);
        // Books that were wrong must not keep a sale from being purged.
        let left = Expr::case(sold().gte(units), sold().sub(units)).finally(0_i64);
        let of_item = of_sale.clone().filter(item::Column::Sku.eq(sku));
        of_item.col_expr(item::Column::Sold, left.into()).exec(transaction).await?;
    }
    Ok(())
}
