//! A buyer's request and the answers to it.

use super::order_view::OrderView;
use crate::domain::{
    Durability, IdempotencyKey, Limited, Millis, Order, OrderId, SaleId, Sku, TraceContext, UserId, Verdict,
};

/// A buyer's request for an order, with its syntax checked.
#[derive(Debug, Clone)]
pub struct OrderRequest {
    /// The sale to order from.
    pub sale: SaleId,
    /// The authenticated buyer.
    pub user: UserId,
    /// The item; may be left out in a sale of one item.
    pub sku: Option<Sku>,
    /// Units.
    pub quantity: u32,
    /// The idempotency key, if the buyer sent one.
    pub key: Option<IdempotencyKey>,
    /// Its place in its trace, if it has one.
    pub trace: Option<TraceContext>,
}

/// The answer to an [`OrderRequest`].
#[derive(Debug, Clone)]
pub enum Answer {
    /// Accepted by this request.
    Accepted {
        /// The new order.
        order: Order,
        /// Which servers hold it.
        durability: Durability,
    },
    /// The same click again: the same order with its present status.
    Repeat(Box<OrderView>),
    /// The same click again, but the order's status cannot be read now.
    RepeatUnreadable(OrderId),
    /// No sale has this id.
    SaleNotFound,
    /// The sale has several items, and the request names none.
    SkuRequired,
    /// The sale has no such item.
    UnknownSku,
    /// The quantity is zero or above the limit.
    InvalidQuantity {
        /// Maximum units of one user.
        limit: u32,
    },
    /// The limit is above one, so a request needs an idempotency key.
    KeyRequired,
    /// The key was used with another body.
    KeyReused,
    /// The sale has not opened yet.
    NotOpen {
        /// Redis's clock, or this process's if the sale is not loaded.
        now: Millis,
        /// When to try again.
        opens_at: Millis,
    },
    /// The sale takes no more orders.
    Closed,
    /// The sale is paused, or frozen.
    Paused {
        /// The operator's message to buyers.
        message: Option<String>,
        /// Seconds.
        retry_after: Option<u64>,
    },
    /// The user or the sale is above its rate.
    RateLimited(Limited),
    /// Fewer units are left than requested.
    SoldOut,
    /// The user holds this order, and the limit is one.
    AlreadyOrdered(OrderId),
    /// The user would hold more units than allowed.
    PurchaseLimit {
        /// Maximum units of one user.
        limit: u32,
    },
    /// Too many orders are in flight or waiting. Nothing was taken.
    Overloaded,
    /// The gate could not decide, for this reason. Nothing was taken.
    GateUnavailable(String),
    /// The unit may or may not be taken, for this reason. Repeating with the same key gives the outcome. The order is
    /// named only if the gate has accepted it: a repeat then returns this order and no other.
    OutcomeUnknown(Option<OrderId>, String),
}

impl Answer {
    /// Whether the buyer learns from this answer that they hold, or may hold, an order.
    pub(super) fn reveals_order(&self) -> bool {
        match self {
            Self::Accepted { .. }
            | Self::Repeat(_)
            | Self::RepeatUnreadable(_)
            | Self::KeyReused
            | Self::AlreadyOrdered(_)
            | Self::PurchaseLimit { .. }
            | Self::OutcomeUnknown(..) => true,
            Self::SaleNotFound
            | Self::SkuRequired
            | Self::UnknownSku
            | Self::InvalidQuantity { .. }
            | Self::KeyRequired
            | Self::NotOpen { .. }
            | Self::Closed
            | Self::Paused { .. }
            | Self::RateLimited(_)
            | Self::SoldOut
            | Self::Overloaded
            | Self::GateUnavailable(_) => false,
        }
    }

    /// The answer to a refusal by the gate.
    pub(super) fn refusal(verdict: Verdict) -> Self {
        match verdict {
            Verdict::KeyReused => Self::KeyReused,
            Verdict::KeyRequired => Self::KeyRequired,
            Verdict::NotOpen { now, opens_at } => Self::NotOpen { now, opens_at },
            Verdict::Closed => Self::Closed,
            Verdict::Paused { message, retry_after } => Self::Paused { message, retry_after },
            Verdict::Frozen => Self::Paused { message: None, retry_after: None },
            Verdict::RateLimited(limited) => Self::RateLimited(limited),
            Verdict::AlreadyOrdered(id) => Self::AlreadyOrdered(id),
            Verdict::PurchaseLimit { limit } => Self::PurchaseLimit { limit },
            Verdict::UnknownSku => Self::UnknownSku,
            Verdict::SoldOut => Self::SoldOut,
            Verdict::Overloaded => Self::Overloaded,
            Verdict::NotLoaded | Verdict::Accepted(_) | Verdict::InFlight(_) | Verdict::Settled(_) => {
                Self::GateUnavailable("the gate does not know the sale".into())
            }
        }
    }
}
