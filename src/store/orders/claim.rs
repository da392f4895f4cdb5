//! An order to be recorded, and the outcomes of recording it.

use crate::domain::{Failure, Order, OrderStatus};

/// An accepted order, with the fencing token of the lease under which it is written.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The order.
    pub order: Order,
    /// The fencing token of the lease on its user.
    pub fence: i64,
}

/// The outcome of a claim. Every outcome but `Stale` and `Locked` is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// The row was inserted now, and its units were counted.
    Confirmed,
    /// The row already existed: the message was delivered before.
    Already(OrderStatus, Option<Failure>),
    /// The database refused the order: its row is `failed`. For [`Failure::OverLimit`], with the order that won.
    Failed(Failure, Option<Box<Order>>),
    /// A holder with a higher token has written for this user: take the lease again.
    Stale,
    /// Another session holds a row of the sale: try again later.
    Locked,
}

/// Why a batch could not be committed.
pub(in crate::store) enum Refusal {
    /// An item has too little stock, or does not exist.
    Stock(Failure),
    /// A user would hold too many units.
    Limit,
    /// A holder with a higher token has written for a user.
    Fence,
    /// A row conflicts with another order's, by key or by number.
    Conflict,
}
