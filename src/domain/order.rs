//! An order, its states, and the acts that move it from one state to another.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Fingerprint, KeyDigest, Millis, OrderId, SaleId, Sku, UserId};

/// The place of a write in the gate's history. Every write to a sale's gate takes the next `seq`, and every rebuild
/// takes a higher `epoch`. Compared epoch first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
pub struct Number {
    /// Rises with each rebuild of the sale's gate.
    pub epoch: i64,
    /// Rises with each write within the epoch.
    pub seq: i64,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.epoch, self.seq)
    }
}

/// An admitted order, as the outbox holds it, a message carries it, and the database stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WholeOrder")]
pub struct Order {
    /// Its id, generated before the gate decided.
    #[serde(rename = "order_id")]
    pub id: OrderId,
    /// The sale.
    #[serde(rename = "sale_id")]
    pub sale: SaleId,
    /// The buyer.
    #[serde(rename = "user_id")]
    pub user: UserId,
    /// The item.
    pub sku: Sku,
    /// Units of the item.
    pub quantity: u32,
    /// The digest of the buyer's idempotency key.
    pub key: KeyDigest,
    /// The fingerprint of the buyer's request.
    pub fingerprint: Fingerprint,
    /// The number of its admission, unique within the sale.
    #[serde(flatten)]
    pub number: Number,
    /// The limit of units per user when the gate admitted the order. The database applies the same limit, even if an
    /// operator has changed it since.
    pub limit: u32,
    /// When the gate admitted it, by Redis's clock inside the script.
    pub accepted_at: Millis,
}

/// The state of an order. The transitions: `accepted -> confirmed -> paid | cancelled | expired`, `paid -> refunded`,
/// `accepted -> failed | cancelled`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OrderStatus {
    /// Admitted by the gate. It has no row yet.
    Accepted,
    /// Its row is committed.
    Confirmed,
    /// The database refused it, or an operator failed it. [`Failure`] says why.
    Failed,
    /// Paid for.
    Paid,
    /// Cancelled by its buyer or an operator before payment.
    Cancelled,
    /// Not paid in time.
    Expired,
    /// Paid for, and given back.
    Refunded,
}

impl OrderStatus {
    /// Every state.
    pub const ALL: [OrderStatus; 7] = [
        Self::Accepted,
        Self::Confirmed,
        Self::Failed,
        Self::Paid,
        Self::Cancelled,
        Self::Expired,
        Self::Refunded,
    ];

    /// The name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Confirmed => "confirmed",
            Self::Failed => "failed",
            Self::Paid => "paid",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Refunded => "refunded",
        }
    }

    /// Whether an order in this state owns its units. Stock and limits per user count these orders.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Accepted | Self::Confirmed | Self::Paid)
    }
}

impl std::str::FromStr for OrderStatus {
    type Err = super::Invalid;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or(super::Invalid {
            what: "an order status",
            rule: "one of accepted, confirmed, failed, paid, cancelled, expired, refunded",
        })
    }
}

impl fmt::Display for OrderStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An act on an order: a transition that a person or a deadline requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Record its payment.
    Pay,
    /// End it before payment.
    Cancel,
    /// End it because nobody paid in time.
    Expire,
    /// End it after payment.
    Refund,
}

impl Act {
    /// Every act.
    pub const ALL: [Act; 4] = [Self::Pay, Self::Cancel, Self::Expire, Self::Refund];

    /// The acts that operators may request. Deadlines request the others.
    pub const OF_OPERATORS: [Act; 3] = [Self::Pay, Self::Cancel, Self::Refund];

    /// The acts that buyers may request for their own orders.
    pub const OF_BUYERS: [Act; 1] = [Self::Cancel];

    /// The name in JSON and in histories.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pay => "pay",
            Self::Cancel => "cancel",
            Self::Expire => "expire",
            Self::Refund => "refund",
        }
    }

    /// The state after the act. For an order that is already in it, repeating the act is no error.
    pub fn leads_to(self) -> OrderStatus {
        match self {
            Self::Pay => OrderStatus::Paid,
            Self::Cancel => OrderStatus::Cancelled,
            Self::Expire => OrderStatus::Expired,
            Self::Refund => OrderStatus::Refunded,
        }
    }
}

impl OrderStatus {
    /// Whether the act is legal in this state. An accepted order can be cancelled before it has a row.
    pub fn allows(self, act: Act) -> bool {
        matches!(
            (self, act),
            (Self::Confirmed, Act::Pay | Act::Expire)
                | (Self::Accepted | Self::Confirmed, Act::Cancel)
                | (Self::Paid, Act::Refund)
        )
    }

    /// Whether no other state can follow.
    pub fn is_final(self) -> bool {
        !Act::ALL.into_iter().any(|act| self.allows(act)) && self != Self::Accepted
    }

    /// The acts in `of` that are legal in this state.
    pub fn allowed(self, of: &[Act]) -> Vec<Act> {
        of.iter().copied().filter(|act| self.allows(*act)).collect()
    }
}

/// Why the database, the last line of defence, refused an order that the gate had accepted. Each failure is committed
/// as an outcome that the buyer can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The item's stock was used up: the gate held more units than there are.
    OutOfStock,
    /// The user had already reached the limit with another live order.
    OverLimit,
    /// Another order has the same (sale, epoch, seq): the gate lost writes and issued the number again.
    NumberReused,
    /// The sale or the sku has no row.
    UnknownItem,
    /// No worker could process it, and an operator failed it.
    GivenUp,
}

impl Failure {
    /// Every failure.
    pub const ALL: [Failure; 5] =
        [Self::OutOfStock, Self::OverLimit, Self::NumberReused, Self::UnknownItem, Self::GivenUp];

    /// The name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OutOfStock => "out_of_stock",
            Self::OverLimit => "over_limit",
            Self::NumberReused => "number_reused",
            Self::UnknownItem => "unknown_item",
            Self::GivenUp => "given_up",
        }
    }

    /// Whether the gate made a promise that the database cannot keep. If so, the sale is paused until an operator has
    /// looked into it.
    pub fn stops_the_sale(self) -> bool {
        !matches!(self, Self::OverLimit | Self::GivenUp)
    }
}

impl std::str::FromStr for Failure {
    type Err = super::Invalid;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|failure| failure.as_str() == text).ok_or(super::Invalid {
            what: "a failure",
            rule: "one of out_of_stock, over_limit, number_reused, unknown_item, given_up",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_failures_have_one_spelling() {
        for status in OrderStatus::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
            assert_eq!(serde_json::to_value(status).ok(), Some(status.as_str().into()));
        }
        for failure in Failure::ALL {
            assert_eq!(failure.as_str().parse(), Ok(failure));
            assert_eq!(serde_json::to_value(failure).ok(), Some(failure.as_str().into()));
        }
    }

    #[test]
    fn every_arrow_leaves_its_state_and_the_ends_have_none() {
        for from in OrderStatus::ALL {
            for act in from.allowed(&Act::ALL) {
                assert_ne!(from, act.leads_to());
                assert!(!act.leads_to().allows(act), "{from} could be left twice by {}", act.as_str());
            }
        }
        for end in [OrderStatus::Failed, OrderStatus::Cancelled, OrderStatus::Expired, OrderStatus::Refunded]
        {
            assert!(end.allowed(&Act::ALL).is_empty() && !end.is_live(), "{end}");
        }
    }

    #[test]
    fn numbers_compare_by_epoch_first() {
        assert!(Number { epoch: 2, seq: 1 } > Number { epoch: 1, seq: 900 });
    }
}
