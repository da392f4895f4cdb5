//! An order as its buyer may see it.

use crate::domain::{Durability, Failure, Millis, Order, OrderStatus};
use crate::gate::GateError;
use crate::store::{OrderEvent, OrderRow, Payment, StoreError};

/// An order with its status and history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderView {
    /// The order as it was accepted.
    pub order: Order,
    /// Its present status.
    pub status: OrderStatus,
    /// Which servers hold it, while it is in flight.
    pub durability: Option<Durability>,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
    /// The payment deadline, while the order waits for payment.
    pub pay_by: Option<Millis>,
    /// Each status with the time it was reached, oldest first.
    pub history: Vec<(OrderStatus, Millis)>,
    /// Its payments and refunds, oldest first, if it was read alone and is paid or has ended.
    pub payments: Vec<Payment>,
}

impl OrderView {
    pub(super) fn in_flight(order: Order, durability: Durability) -> Self {
        let history = vec![(OrderStatus::Accepted, order.accepted_at)];
        Self {
            order,
            status: OrderStatus::Accepted,
            durability: Some(durability),
            failure: None,
            pay_by: None,
            history,
            payments: Vec::new(),
        }
    }

    /// The order as it was when it had reached the state at this place of its history, from 0.
    pub fn at_step(&self, nth: usize) -> Self {
        let Some((status, _)) = self.history.get(nth).filter(|_| nth + 1 < self.history.len()) else {
            return self.clone();
        };
        Self {
            order: self.order.clone(),
            status: *status,
            durability: None,
            failure: None,
            pay_by: None,
            history: self.history.iter().take(nth + 1).copied().collect(),
            payments: Vec::new(),
        }
    }

    /// An order from its row and its events, oldest first. Events that are newer than the row are left out: the two are read
    /// one after the other, and the order may change in between.
    pub fn recorded(row: OrderRow, events: &[OrderEvent]) -> Self {
        let events = up_to(events, row.status);
        let mut history = vec![(OrderStatus::Accepted, row.order.accepted_at)];
        match events.first() {
            None => history.push((row.status, row.recorded_at)),
            // The order ended before a worker wrote its row.
            Some(first) if first.from == OrderStatus::Accepted => {}
            Some(first) => history.push((first.from, row.recorded_at)),
        }
        history.extend(events.iter().map(|event| (event.to, event.at)));
        let pay_by = row.pay_by.filter(|_| row.status == OrderStatus::Confirmed);
        Self {
            order: row.order,
            status: row.status,
            durability: None,
            failure: row.failure,
            pay_by,
            history,
            payments: Vec::new(),
        }
    }
}

/// The events up to the one that led to this state: an order reaches no state twice.
fn up_to(events: &[OrderEvent], status: OrderStatus) -> &[OrderEvent] {
    let last = events.iter().position(|event| event.to == status);
    last.map_or(events, |last| &events[..=last])
}

/// The status is not known, because the gate or the database did not answer or has lost writes. Never report this as
/// "not found".
#[derive(Debug, Clone, thiserror::Error)]
pub enum StatusUnknown {
    /// The gate could not be read.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The database could not be read.
    #[error(transparent)]
    Store(StoreError),
    /// Both answered, but one of them lacks what it had, for this reason.
    #[error("{0}; ask again in a moment")]
    Incomplete(&'static str),
}

impl From<StoreError> for StatusUnknown {
    fn from(error: StoreError) -> Self {
        match error {
            // How to bring it up to date is not for buyers.
            StoreError::Behind(_) => Self::Incomplete("the latest changes of orders are being restored"),
            error => Self::Store(error),
        }
    }
}
