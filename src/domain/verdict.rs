//! What the gate answers to one attempt. Expected answers are values: sold out is not an error.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Fingerprint, KeyDigest, Millis, Number, Order, OrderId, Rate, SaleId, Sku, UserId};

/// One buyer's wish, as it reaches the gate. The order id is made before the script runs, so that
/// a lost answer leaves nothing that cannot be asked for by name.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub id: OrderId,
    pub sale: SaleId,
    pub user: UserId,
    pub sku: Sku,
    pub quantity: u32,
    pub key: KeyDigest,
    /// Did the buyer send a key? Without one, another body is a second order, not a misused key.
    pub keyed: bool,
    pub fingerprint: Fingerprint,
}

impl Attempt {
    /// The order that this attempt becomes when the gate says yes.
    pub fn admitted(&self, number: Number, limit: u32, accepted_at: Millis) -> Order {
        Order {
            id: self.id,
            sale: self.sale.clone(),
            user: self.user.clone(),
            sku: self.sku.clone(),
            quantity: self.quantity,
            key: self.key,
            fingerprint: self.fingerprint,
            number,
            limit,
            accepted_at,
        }
    }
}

/// How many servers hold an accepted order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Redis alone: the outbox entry.
    Outbox,
    /// Redis and RabbitMQ, which has confirmed it.
    Broker,
}

/// An order in flight, as the outbox tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    pub order: Order,
    pub durability: Durability,
    /// It lies on the dead-letter queue.
    pub parked: bool,
    /// Its row has reached its end, and the gate could not take its units back yet: the row tells.
    pub ended: bool,
}

/// A rate that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited {
    /// Of one user, or else of all together.
    pub of_user: bool,
    pub rate: Rate,
    /// When the next attempt may be made.
    pub retry_after: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The unit is taken and the outbox holds the order.
    Accepted(Order),
    /// The same click again, and the order is still in flight.
    InFlight(Ticket),
    /// The same click again, and the order has a row: ask the store for its status.
    Settled(OrderId),
    KeyReused,
    /// Several orders are allowed, and without a key a repeat could not be told from a new one.
    KeyRequired,
    NotOpen {
        now: Millis,
        opens_at: Millis,
    },
    Closed,
    Paused {
        message: Option<String>,
        /// Seconds.
        retry_after: Option<u64>,
    },
    /// The gate lost writes; nothing is sold until it has been rebuilt.
    Frozen,
    /// At the limit of 1, with the order that the user has.
    AlreadyOrdered(OrderId),
    /// At a higher limit.
    PurchaseLimit {
        limit: u32,
    },
    /// Too many attempts; nothing was taken.
    RateLimited(Limited),
    UnknownSku,
    SoldOut,
    /// The outbox is full: too many orders wait for the database.
    Overloaded,
    /// The gate does not know the sale.
    NotLoaded,
}
