//! An order and the arrows between its states.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Fingerprint, KeyDigest, Millis, OrderId, SaleId, Sku, UserId};

/// The place of a write in the gate's history. Every write to a sale's gate takes the next `seq`;
/// a rebuild takes the next `epoch`. Compared epoch first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Number {
    pub epoch: i64,
    pub seq: i64,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.epoch, self.seq)
    }
}

/// An admitted order: what the outbox holds, what a message carries, what becomes a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    #[serde(rename = "order_id")]
    pub id: OrderId,
    #[serde(rename = "sale_id")]
    pub sale: SaleId,
    #[serde(rename = "user_id")]
    pub user: UserId,
    pub sku: Sku,
    pub quantity: u32,
    pub key: KeyDigest,
    pub fingerprint: Fingerprint,
    #[serde(flatten)]
    pub number: Number,
    /// Units per user that the sale allowed when the gate said yes: the database judges by the
    /// same limit, even if an operator has changed it since.
    pub limit: u32,
    /// By Redis's clock, inside the script.
    pub accepted_at: Millis,
}

/// Where an order is. The arrows: `accepted -> confirmed -> paid | cancelled | expired`,
/// `paid -> refunded`, `accepted -> failed | cancelled`. An accepted order has no row yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderStatus {
    Accepted,
    Confirmed,
    Failed,
    Paid,
    Cancelled,
    Expired,
    Refunded,
}

impl OrderStatus {
    pub const ALL: [OrderStatus; 7] = [
        Self::Accepted,
        Self::Confirmed,
        Self::Failed,
        Self::Paid,
        Self::Cancelled,
        Self::Expired,
        Self::Refunded,
    ];

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

    /// Does an order in this state own its units? I1 and I2 count these.
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

/// What can be done to an order: the arrows that somebody draws, each with its own name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    Pay,
    Cancel,
    /// Nobody paid in time.
    Expire,
    Refund,
}

impl Act {
    pub const ALL: [Act; 4] = [Self::Pay, Self::Cancel, Self::Expire, Self::Refund];

    /// What people do to an order; time does the rest.
    pub const OF_OPERATORS: [Act; 3] = [Self::Pay, Self::Cancel, Self::Refund];

    /// What a buyer does to his own.
    pub const OF_BUYERS: [Act; 1] = [Self::Cancel];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pay => "pay",
            Self::Cancel => "cancel",
            Self::Expire => "expire",
            Self::Refund => "refund",
        }
    }

    /// The state after it. An order that is there already has had the act: repeating it is no error.
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
    /// Is there an arrow? An accepted order can be cancelled before it has a row.
    pub fn allows(self, act: Act) -> bool {
        matches!(
            (self, act),
            (Self::Confirmed, Act::Pay | Act::Expire)
                | (Self::Accepted | Self::Confirmed, Act::Cancel)
                | (Self::Paid, Act::Refund)
        )
    }

    /// Which of these can be done to an order in this state.
    pub fn allowed(self, of: &[Act]) -> Vec<Act> {
        of.iter().copied().filter(|act| self.allows(*act)).collect()
    }
}

/// Why the database, the last line, refused an order that the gate had accepted. Each is a
/// committed outcome that the buyer can read, never silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The item's stock was spent: the gate held more units than there are.
    OutOfStock,
    /// The user's live units had reached the limit: another order of the user won.
    OverLimit,
    /// Another order holds the same (sale, epoch, seq): the gate went back in time.
    NumberReused,
    /// The sale or the sku has no row.
    UnknownItem,
    /// No worker could process it, and an operator has ended it.
    GivenUp,
}

impl Failure {
    pub const ALL: [Failure; 5] =
        [Self::OutOfStock, Self::OverLimit, Self::NumberReused, Self::UnknownItem, Self::GivenUp];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::OutOfStock => "out_of_stock",
            Self::OverLimit => "over_limit",
            Self::NumberReused => "number_reused",
            Self::UnknownItem => "unknown_item",
            Self::GivenUp => "given_up",
        }
    }

    /// Has the gate promised what does not exist? Then the sale must stop until someone looked.
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
