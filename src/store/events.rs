//! The history of orders: a row for each change after the first.

use std::collections::BTreeMap;

use sea_orm::{ActiveValue::Set, EntityTrait as _, QueryFilter as _, QueryOrder as _};

use super::entities::order_event;
use super::many::is_one_of;
use super::{Store, StoreError};
use crate::domain::{ActRequest, Millis, Order, OrderId, OrderStatus};

/// One line of an order's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderEvent {
    pub from: OrderStatus,
    pub to: OrderStatus,
    pub actor: String,
    pub reason: Option<String>,
    pub at: Millis,
}

impl Store {
    /// What happened to an order after its row was written, oldest first.
    pub async fn history(&self, id: OrderId) -> Result<Vec<OrderEvent>, StoreError> {
        Ok(self.histories(&[id]).await?.remove(&id).unwrap_or_default())
    }

    /// The same for many orders in one query; those to which nothing happened are not there.
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

pub(super) fn event(
    order: &Order,
    from: OrderStatus,
    to: OrderStatus,
    version: i32,
    asked: &ActRequest,
    at: Millis,
) -> order_event::ActiveModel {
    order_event::ActiveModel {
        order_id: Set(order.id.uuid()),
        version: Set(version),
        sale_id: Set(order.sale.to_string()),
        from_status: Set(from.as_str().into()),
        to_status: Set(to.as_str().into()),
        actor: Set(asked.by.clone()),
        reason: Set(asked.reason.clone()),
        at_ms: Set(at.0),
    }
}
