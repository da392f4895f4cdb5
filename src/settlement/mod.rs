//! How the gate learns what the database has committed. One path for every caller: the worker, an
//! operator's acts, recovery and the sweep.
//!
//! Settle after COMMIT, never before: an order that was settled first would be in neither server for a
//! moment. Every function here is idempotent, so a caller that gets an error may simply repeat the call,
//! and whatever a crash leaves undone is finished by the sweep or by the next round of maintenance.

mod adopt;
mod batch;
mod places;
mod recorded;
mod replaced;
mod returns;

use crate::domain::{Failure, Order};
use crate::gate::{Gate, GateError, Outcome, Settlement};
use crate::lease::Leases;
use crate::store::{Store, StoreError};

pub use batch::{Outcomes, pause_sale};
pub use places::{compare_places, witnessed_places};
pub use recorded::mark_recorded;
pub use returns::{BeforeEach, GivenBack, give_back, give_back_pending};

/// A server did not answer, so the gate may not know the outcome yet. Repeat the call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SettlementError {
    /// The gate did not take the outcome, or did not confirm that it did.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The row could not be read, or the gate's number could not be recorded in it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The servers that take part in settling a batch of outcomes.
#[derive(Clone, Copy)]
pub struct Settler<'a> {
    /// Receives the outcomes.
    pub gate: &'a Gate,
    /// Has the rows with the outcomes.
    pub store: &'a Store,
    /// Protects a user's orders while the gate learns of one of them.
    pub leases: &'a Leases,
}

/// The settlement of an order whose row is committed; `failure` is the row's. `None` if another order of its user
/// replaced it: what the gate learns of that order must still be true, so only [`Settler::settle_order`] judges it.
pub fn settlement_of(order: &Order, failure: Option<Failure>) -> Option<Settlement> {
    let outcome = match failure {
        None => Outcome::Kept,
        Some(Failure::OverLimit) => return None,
        // Its unit exists, and nobody has it.
        Some(Failure::GivenUp) => Outcome::Returned,
        Some(Failure::OutOfStock | Failure::NumberReused | Failure::UnknownItem) => Outcome::Dropped,
    };
    Some(Settlement { id: order.id, user: order.user.clone(), outcome })
}
