//! What the gate must be told of an order whose outcome is committed.

mod adopt;
mod batch;
mod returns;

use crate::domain::{Failure, Order};
use crate::gate::{GateError, Outcome};
use crate::store::{Store, StoreError};

pub use adopt::adopt;
pub use batch::Outcomes;
pub use returns::give_back;

/// A server did not answer, so the gate may not know the outcome yet. Every settlement may be repeated.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SettlementError {
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// `failure` as the row has it. Asks the store only where another order won.
pub async fn outcome(store: &Store, order: &Order, failure: Option<Failure>) -> Result<Outcome, StoreError> {
    Ok(match failure {
        None => Outcome::Kept,
        Some(Failure::OverLimit) => Outcome::Replaced(store.live_order_of(order).await?.map(Box::new)),
        // Its unit exists, and nobody has it.
        Some(Failure::GivenUp) => Outcome::Returned,
        Some(Failure::OutOfStock | Failure::NumberReused | Failure::UnknownItem) => Outcome::Dropped,
    })
}
