//! What the gate must be told of an order whose outcome is committed.

use crate::domain::{Failure, Order};
use crate::gate::Outcome;
use crate::store::{Store, StoreError};

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
