//! An event as an endpoint gets it.

use std::collections::BTreeMap;

use serde_json::json;

use crate::domain::{EventType, OrderId, OrderStatus};
use crate::store::{OrderRow, Store, StoreError, WebhookDelivery};

/// Its id, which a repeat has as well, and its body.
pub(super) struct Message {
    pub(super) id: String,
    pub(super) body: String,
}

/// The orders of some deliveries.
pub(super) struct Orders(BTreeMap<OrderId, Result<OrderRow, StoreError>>);

impl Orders {
    pub(super) async fn of(deliveries: &[WebhookDelivery], store: &Store) -> Result<Self, StoreError> {
        let of_orders = deliveries.iter().filter(|delivery| matches!(delivery.event, EventType::Order(_)));
        let mut ids: Vec<OrderId> = of_orders.map(|delivery| delivery.subject.into()).collect();
        ids.dedup();
        Ok(Self(store.readable_orders_by_id(&ids).await?))
    }

    /// `None` if the event is of an order that was deleted with its sale: nothing is known of it any more. An error if its
    /// row cannot be read.
    pub(super) fn message(&self, delivery: &WebhookDelivery) -> Result<Option<Message>, &StoreError> {
        let WebhookDelivery { sale, event, at, version, .. } = delivery;
        let (id, data) = match event {
            EventType::Order(status) => {
                let order = OrderId::from(delivery.subject);
                let Some(row) = self.0.get(&order) else { return Ok(None) };
                let row = row.as_ref()?;
                let mut data = json!({
                    "order_id": order,
                    "sale_id": sale,
                    "user_id": row.order.user,
                    "sku": row.order.sku,
                    "quantity": row.order.quantity,
                    "status": status,
                    "version": version,
                });
                if *status == OrderStatus::Failed {
                    data["failure"] = json!(row.failure);
                }
                (format!("{order}.{version}"), data)
            }
            // A database that went back in time may give a version a second time; the time is another one.
            EventType::Sale(what) => {
                let id = format!("{sale}.{}.{}", what.as_str(), at.0);
                (id, json!({ "sale_id": sale, "status": what.as_str() }))
            }
        };
        let body = json!({ "type": event.to_string(), "timestamp": at, "data": data }).to_string();
        Ok(Some(Message { id, body }))
    }
}
