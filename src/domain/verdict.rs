//! The gate's answer to one attempt. Expected answers are values: sold out is not an error.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Fingerprint, KeyDigest, Millis, Number, Order, OrderId, Rate, SaleId, Sku, UserId};

/// One buyer's request, as it reaches the gate. The order id is generated before the script runs, so that the outcome
/// can be looked up by id even if the answer is lost.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The id of the order, if the attempt is admitted.
    pub id: OrderId,
    /// The sale.
    pub sale: SaleId,
    /// The buyer.
    pub user: UserId,
    /// The item.
    pub sku: Sku,
    /// Units of the item.
    pub quantity: u32,
    /// The digest of the idempotency key.
    pub key: KeyDigest,
    /// Whether the buyer sent a key. Without one, a different body is a second order and not a misused key.
    pub keyed: bool,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
}

impl Attempt {
    /// The order that this attempt becomes when the gate admits it.
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

/// Which servers hold an accepted order. More servers compare as greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Only Redis, as an outbox entry.
    Outbox,
    /// Redis, and RabbitMQ, which confirmed the message.
    Broker,
}

/// An order in flight, as its outbox entry describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The order as the gate admitted it.
    pub order: Order,
    /// Which servers hold it.
    pub durability: Durability,
    /// Whether it waits on the dead-letter queue.
    pub parked: bool,
    /// Whether the order has ended in its row, but the gate could not take its units back yet. The row has the status.
    pub ended: bool,
}

/// What a rate applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateOf {
    /// One network address.
    Address,
    /// One user.
    User,
    /// All users of a sale.
    Sale,
    /// The orders of one user that have ended: a user who orders and cancels again and again takes units from others.
    EndedOrders,
}

impl RateOf {
    /// The name, as the gate and buyers write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::User => "user",
            Self::Sale => "sale",
            Self::EndedOrders => "ended_orders",
        }
    }
}

/// A rate that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited {
    /// What the rate applies to.
    pub of: RateOf,
    /// The rate.
    pub rate: Rate,
    /// How long until another attempt is allowed.
    pub retry_after: Duration,
}

/// The gate's answer to one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The units are taken, and the outbox holds the order.
    Accepted(Order),
    /// The same click again, and the order is still in flight.
    InFlight(Ticket),
    /// The same click again, and the order has a row: the store has its status.
    Settled(OrderId),
    /// The same key with another body.
    KeyReused,
    /// The limit allows several orders, and without a key a repeat looks like a new order.
    KeyRequired,
    /// Before the window.
    NotOpen {
        /// Redis's clock.
        now: Millis,
        /// When the sale opens.
        opens_at: Millis,
    },
    /// After the window, or closed by an operator.
    Closed,
    /// Paused by an operator, or because the database refused an accepted order.
    Paused {
        /// The operator's message to buyers.
        message: Option<String>,
        /// Seconds after which buyers should try again.
        retry_after: Option<u64>,
    },
    /// The gate lost writes. Nothing is sold until it has been rebuilt.
    Frozen,
    /// The user is at a limit of 1, with this order.
    AlreadyOrdered(OrderId),
    /// The order would take the user over a higher limit.
    PurchaseLimit {
        /// The most units per user, of the sale or of the item.
        limit: u32,
    },
    /// Too many attempts. Nothing was taken.
    RateLimited(Limited),
    /// The sale has no such item.
    UnknownSku,
    /// Not enough units are left.
    SoldOut,
    /// The outbox is full: too many orders wait for the database.
    Overloaded,
    /// The gate does not know the sale.
    NotLoaded,
}
