//! What Redis and the database hold, as the judge reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What Redis and the database hold of one sale.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Books {
    /// The orders' rows.
    pub orders: Vec<OrderRow>,
    /// The changes of the rows after they were inserted.
    pub changes: Vec<ChangeRow>,
    /// The payment events.
    pub payments: Vec<PaymentRow>,
    /// The items' rows.
    pub items: Vec<ItemRow>,
    /// Ended orders whose units the gate does not have back yet.
    pub returning: i64,
    /// The acts on the sale that were done, oldest first.
    #[serde(default)]
    pub acts: Vec<String>,
    /// Events that were written down for webhooks, and not taken yet.
    #[serde(default)]
    pub webhooks_waiting: i64,
    /// The gate in Redis.
    pub gate: GateBooks,
}

/// A row of `orders`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OrderRow {
    /// The order's id.
    pub id: Uuid,
    /// Its buyer.
    pub user: String,
    /// Its item.
    pub sku: String,
    /// Its units.
    pub quantity: i64,
    /// Its state.
    pub status: String,
    /// When the gate took it, by Redis's clock.
    pub accepted_at_ms: i64,
    /// When its row was written, by the database's clock.
    pub recorded_at_ms: i64,
}

/// A row of `order_events`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChangeRow {
    /// The order.
    pub order: Uuid,
    /// The row's version after the change.
    pub version: i64,
    /// The state before.
    pub from: String,
    /// The state after.
    pub to: String,
    /// When, by the database's clock.
    pub at_ms: i64,
}

/// A row of `payment_events`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PaymentRow {
    /// The provider's event.
    pub event: String,
    /// The order that it paid.
    pub order: Uuid,
    /// What became of it.
    pub state: String,
    /// The order that was taken instead.
    pub new_order: Option<Uuid>,
}

/// A row of `items`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ItemRow {
    /// The item.
    pub sku: String,
    /// Its units.
    pub stock: i64,
    /// Units of live orders, as the database counts them.
    pub sold: i64,
}

/// The gate's keys of the sale.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GateBooks {
    /// Units left of each item.
    pub left: BTreeMap<String, i64>,
    /// Units loaded of each item.
    pub stock: BTreeMap<String, i64>,
    /// The units that each order holds. Ended orders that are only remembered are left out.
    pub held: BTreeMap<Uuid, i64>,
    /// Orders that wait in the outbox.
    pub outbox: i64,
}

impl Books {
    /// Whether nothing is on its way: the outbox is empty, every unit of an ended order is back, no payment waits, and,
    /// where buyers have to pay, no order still may be paid.
    pub fn are_at_rest(&self, buyers_pay: bool) -> bool {
        let payable = buyers_pay && self.orders.iter().any(|row| row.status == "confirmed");
        let pending = self.payments.iter().any(|row| row.state == "pending");
        self.gate.outbox == 0 && self.returning == 0 && !pending && !payable
    }
}

/// Why the books could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// Redis failed.
    #[error("the judge reads Redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// The database failed.
    #[error("the judge reads the database: {0}")]
    Database(#[from] sqlx::Error),
    /// A value is not what the judge expects.
    #[error("the judge cannot read {0:?}")]
    Unreadable(String),
}
