//! The states and kinds of rows, as their columns spell them.

/// The state of an operator's act on a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActState {
    /// Begun: it is still being done, or its outcome is unknown.
    Pending,
    /// Done, in the gate and in the database.
    Done,
    /// Refused; nothing was changed.
    Refused,
}

impl ActState {
    pub(in crate::store) const ALL: [Self; 3] = [Self::Pending, Self::Done, Self::Refused];

    pub(in crate::store) fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Done => "done",
            Self::Refused => "refused",
        }
    }
}

/// The kind of a payment provider's event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaymentKind {
    /// A buyer has paid for an order.
    Paid,
    /// The money was refunded.
    Refunded,
}

impl PaymentKind {
    pub(in crate::store) const ALL: [Self; 2] = [Self::Paid, Self::Refunded];

    /// As in the column, the API and the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Paid => "paid",
            Self::Refunded => "refunded",
        }
    }
}

/// The state of a payment provider's event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaymentState {
    /// Waiting for its order's row, or for a server.
    Pending,
    /// Applied to its order.
    Applied,
    /// To be refunded: its order has ended, or was paid already.
    Late,
    /// Applied to a new order, which took a unit again after the first order had ended.
    Retaken,
    /// The money went back to the buyer.
    Refunded,
    /// Names another sale or user than its order does; nothing was changed.
    Mismatch,
}

impl PaymentState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Applied, Self::Late, Self::Retaken, Self::Refunded, Self::Mismatch];

    /// Those of events that are pending, or leave money to refund.
    pub const OWED: [Self; 3] = [Self::Pending, Self::Late, Self::Mismatch];

    /// As in the column, the API and the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Applied => "applied",
            Self::Late => "late",
            Self::Retaken => "retaken",
            Self::Refunded => "refunded",
            Self::Mismatch => "mismatch",
        }
    }
}

/// The state of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Under way, or its process has died: then nobody holds the lease of its source.
    Running,
    /// Finished.
    Done,
    /// Its process was asked to stop. The run can be resumed.
    Stopped,
    /// An operator cancelled it. The run can be resumed.
    Cancelled,
    /// An error ended it. The run can be resumed.
    Failed,
}

impl RunState {
    pub(in crate::store) const ALL: [Self; 5] =
        [Self::Running, Self::Done, Self::Stopped, Self::Cancelled, Self::Failed];

    /// As in the column and the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}
