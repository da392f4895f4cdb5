//! The history of orders: a row for each change after the first.

use std::collections::BTreeMap;

use sea_orm::{ActiveValue::Set, EntityTrait as _, QueryFilter as _, QueryOrder as _};

use super::read::OrderRow;
use crate::domain::{ActRequest, Millis, OrderId, OrderStatus};
use crate::store::entities::order_event;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;

/// One change of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderEvent {
    /// The state before.
    pub from: OrderStatus,
    /// The state after.
    pub to: OrderStatus,
    /// Who changed it.
    pub actor: String,
    /// Why, in their words.
    pub reason: Option<String>,
    /// When, by the database's clock.
    pub at: Millis,
}

impl Store {
    /// The changes of an order after its row was inserted, oldest first.
    pub async fn history(&self, id: OrderId) -> Result<Vec<OrderEvent>, StoreError> {
        Ok(self.histories(&[id]).await?.remove(&id).unwrap_or_default())
    }

    /// The changes of many orders in one query. Orders without changes are left out.
    pub async fn histories(&self, ids: &[OrderId]) -> Result<BTreeMap<OrderId, Vec<OrderEvent>>, StoreError> {
        let mut events: BTreeMap<OrderId, Vec<OrderEvent>> = BTreeMap::new();
        if ids.is_empty() {
            return Ok(events);
        }
        self.within(async {
            let rows = order_event::Entity::find()
                .filter(is_one_of(&self.db, order_event::Column::OrderId, ids.iter().map(|id| id.uuid())))
                .order_by_asc(order_event::Column::OrderId)
                .order_by_asc(order_event::Column::Version)
                .all(&self.db)
                .await?;
            for row in rows {
                let unreadable = |_| StoreError::unreadable("an order's event", &row);
                events.entry(row.order_id.into()).or_default().push(OrderEvent {
                    from: row.from_status.parse().map_err(unreadable)?,
                    to: row.to_status.parse().map_err(unreadable)?,
                    actor: row.actor.clone(),
                    reason: row.reason.clone(),
                    at: Millis(row.at_ms),
                });
            }
            Ok(events)
        })
        .await
    }
}

/// The history row of a change: `changed` is the order's row after it.
pub(in crate::store) fn event(
    changed: &OrderRow,
    from: OrderStatus,
    asked: &ActRequest,
) -> order_event::ActiveModel {
    order_event::ActiveModel {
        order_id: Set(changed.order.id.uuid()),
        version: Set(changed.version),
        sale_id: Set(changed.order.sale.to_string()),
        from_status: Set(from.as_str().into()),
        to_status: Set(changed.status.as_str().into()),
        actor: Set(asked.by.clone()),
        reason: Set(asked.reason.clone()),
        at_ms: Set(changed.updated_at.0),
    }
}
