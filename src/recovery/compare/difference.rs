//! What can be wrong with one order, and how to repair it.

use crate::domain::{Order, OrderId, Sku, UserId};

/// What is wrong with an order. Differences are listed and repaired in the order of these variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The gate and the order log have it; the outbox and the database do not. Its message is gone.
    Lost,
    /// Only the gate has it.
    Leaked,
    /// Only the gate has it, and the order log does not prove that it is nothing else: its part from that time is gone,
    /// or holds entries that this build cannot read. It may be a good order that the other servers have lost.
    Unproven,
    /// The gate holds it and the log has its row, but the database does not: the database is older than the log.
    DatabaseBehind,
    /// It is in the outbox and has waited a long time for its row.
    Waiting,
    /// It has a row, but its outbox entry is still there.
    Unsettled,
    /// Its row has ended, but the gate still holds its units.
    Unreturned,
    /// Its row is live, but the gate does not hold it: its units could be sold again.
    UnknownToGate,
    /// Its user has more live units than the limit that applied to them.
    Duplicate,
    /// It exceeds the stock of its item: one of the newest live orders.
    Oversold,
}

impl DifferenceKind {
    /// The name in JSON and in the output of `audit`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Leaked => "leaked",
            Self::Unproven => "unproven",
            Self::DatabaseBehind => "database_behind",
            Self::Waiting => "waiting",
            Self::Unsettled => "unsettled",
            Self::Unreturned => "unreturned",
            Self::UnknownToGate => "unknown_to_gate",
            Self::Duplicate => "duplicate",
            Self::Oversold => "oversold",
        }
    }

    /// The step that repairs it, as `audit --repair` shows it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Lost | Self::Waiting => "publish it again",
            Self::Leaked => "record it as expired, then return its units",
            Self::Unproven => {
                "your decision: the log does not show what became of it; --accept-loss records it as expired"
            }
            Self::Unsettled => "settle it in the gate",
            Self::Unreturned => "return its units to the gate",
            Self::UnknownToGate => "add it to the gate",
            Self::DatabaseBehind => "bring the database up to date first: `doorbuster replay run log`",
            Self::Duplicate | Self::Oversold => "your decision: `doorbuster order cancel`, or refund it",
        }
    }

    /// Whether it can be repaired without deciding whose order counts.
    pub fn is_repairable(self) -> bool {
        !matches!(self, Self::Unproven | Self::Duplicate | Self::Oversold | Self::DatabaseBehind)
    }
}

/// An order that differs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// The order.
    pub order_id: OrderId,
    /// Its buyer.
    pub user_id: UserId,
    /// Its item.
    pub sku: Sku,
    /// Its units.
    pub quantity: u32,
    /// What is wrong with it.
    pub why: DifferenceKind,
    /// As much of the order as is known; without its number if only the gate has it.
    #[serde(skip)]
    pub order: Order,
}

impl Difference {
    pub(super) fn of(order: &Order, why: DifferenceKind) -> Self {
        Self {
            order_id: order.id,
            user_id: order.user.clone(),
            sku: order.sku.clone(),
            quantity: order.quantity,
            why,
            order: order.clone(),
        }
    }
}
