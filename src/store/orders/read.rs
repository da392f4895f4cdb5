//! Reading orders.

use std::collections::BTreeMap;

use sea_orm::{
    ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _, Select,
};

use crate::domain::{Failure, Millis, Number, Order, OrderId, OrderStatus, SaleId, UserId};
use crate::store::entities::order;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::webhooks::Reached;

/// An order with its committed outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRow {
    /// The order as it was accepted.
    pub order: Order,
    /// Its state.
    pub status: OrderStatus,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
    /// 1 for the first row, and one more with each change.
    pub version: i32,
    /// When the row was inserted.
    pub recorded_at: Millis,
    /// When the row changed last.
    pub updated_at: Millis,
    /// The payment deadline by the database's clock; `None` if the order waits for no payment, or has no deadline.
    pub pay_by: Option<Millis>,
}

impl OrderRow {
    /// The state that the row is in, for webhooks.
    pub(in crate::store) fn reached(&self) -> Reached<'_> {
        Reached {
            order: self.order.id,
            version: self.version,
            sale: self.order.sale.as_str(),
            status: self.status,
            at: self.updated_at,
        }
    }

    /// Whether the order has changed since its row was inserted.
    pub fn has_history(&self) -> bool {
        !matches!(self.status, OrderStatus::Accepted | OrderStatus::Confirmed | OrderStatus::Failed)
    }
}

impl Store {
    /// An order; `None` if it has no row.
    pub async fn order(&self, id: OrderId) -> Result<Option<OrderRow>, StoreError> {
        self.within(async {
            let row = order::Entity::find_by_id(id.uuid()).one(&self.db).await?;
            row.map(read_order).transpose()
        })
        .await
    }

    /// Many orders in one query, in no particular order. Orders without a row are left out.
    pub async fn orders_by_id(&self, ids: &[OrderId]) -> Result<Vec<OrderRow>, StoreError> {
        self.rows_by_id(ids).await?.into_iter().map(read_order).collect()
    }

    /// The same, by id, and why a row cannot be read: a later build may have written it.
    pub async fn readable_orders_by_id(
        &self,
        ids: &[OrderId],
    ) -> Result<BTreeMap<OrderId, Result<OrderRow, StoreError>>, StoreError> {
        let rows = self.rows_by_id(ids).await?;
        Ok(rows.into_iter().map(|row| (row.id.into(), read_order(row))).collect())
    }

    async fn rows_by_id(&self, ids: &[OrderId]) -> Result<Vec<order::Model>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let these = is_one_of(&self.db, order::Column::Id, ids.iter().map(|id| id.uuid()));
        self.within(async { Ok(order::Entity::find().filter(these).all(&self.db).await?) }).await
    }

    /// One page of a user's orders in a sale, oldest first, starting after `after`.
    pub async fn orders_of(
        &self,
        sale: &SaleId,
        user: &UserId,
        after: Option<OrderId>,
        limit: u64,
    ) -> Result<Vec<OrderRow>, StoreError> {
        let query = page(sale, after, limit).filter(order::Column::UserId.eq(user.as_str()));
        self.within(async { query.all(&self.db).await?.into_iter().map(read_order).collect() }).await
    }

    /// The highest gate number among the sale's rows; (0, 0) if it has none.
    pub async fn highest_number(&self, sale: &SaleId) -> Result<Number, StoreError> {
        Ok(self.last_order(sale).await?.map(|(number, _)| number).unwrap_or_default())
    }

    /// The highest gate number among the sale's rows, and when that order was accepted.
    pub async fn last_order(&self, sale: &SaleId) -> Result<Option<(Number, Millis)>, StoreError> {
        self.within(async {
            let row: Option<(i64, i64, i64)> = order::Entity::find()
                .select_only()
                .columns([order::Column::Epoch, order::Column::Seq, order::Column::AcceptedAtMs])
                .filter(order::Column::SaleId.eq(sale.as_str()))
                .filter(order::Column::Seq.is_not_null())
                .order_by_desc(order::Column::Epoch)
                .order_by_desc(order::Column::Seq)
                .into_tuple()
                .one(&self.db)
                .await?;
            Ok(row.map(|(epoch, seq, at)| (Number { epoch, seq }, Millis(at))))
        })
        .await
    }

    /// One page of a sale's orders, ordered by id, starting after `after`.
    pub async fn orders_after(
        &self,
        sale: &SaleId,
        after: Option<OrderId>,
        limit: u64,
    ) -> Result<Vec<OrderRow>, StoreError> {
        let query = page(sale, after, limit);
        self.within(async { query.all(&self.db).await?.into_iter().map(read_order).collect() }).await
    }
}

/// The query for one page of a sale's orders, ordered by id, starting after `after`.
fn page(sale: &SaleId, after: Option<OrderId>, limit: u64) -> Select<order::Entity> {
    let page = order::Entity::find()
        .filter(order::Column::SaleId.eq(sale.as_str()))
        .order_by_asc(order::Column::Id)
        .limit(limit);
    match after {
        Some(after) => page.filter(order::Column::Id.gt(after.uuid())),
        None => page,
    }
}

/// An order's row as a domain value.
pub(in crate::store) fn read_order(row: order::Model) -> Result<OrderRow, StoreError> {
    let unreadable = |_| StoreError::unreadable("an order", &row);
    let unsigned = |_| StoreError::unreadable("an order", &row);
    let order = Order {
        id: row.id.into(),
        sale: row.sale_id.parse().map_err(unreadable)?,
        user: row.user_id.parse().map_err(unreadable)?,
        sku: row.sku.parse().map_err(unreadable)?,
        quantity: u32::try_from(row.quantity).map_err(unsigned)?,
        key: row.key_digest.parse().map_err(unreadable)?,
        fingerprint: row.fingerprint.parse().map_err(unreadable)?,
        number: Number { epoch: row.epoch.unwrap_or(0), seq: row.seq.unwrap_or(0) },
        limit: u32::try_from(row.limit_per_user).map_err(unsigned)?,
        accepted_at: Millis(row.accepted_at_ms),
    };
    Ok(OrderRow {
        order,
        status: row.status.parse().map_err(unreadable)?,
        failure: row.failure.as_deref().map(str::parse).transpose().map_err(unreadable)?,
        version: row.version,
        recorded_at: Millis(row.recorded_at_ms),
        updated_at: Millis(row.updated_at_ms),
        pay_by: row.pay_by_ms.map(Millis),
    })
}
