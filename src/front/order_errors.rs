//! Maps an [`OrderError`] to its problem, for buyers and operators alike.

use super::codes::{
    ACT_UNFINISHED, INTERNAL, INVALID_TRANSITION, MALFORMED, ORDER_NOT_FOUND, STATUS_UNAVAILABLE,
};
use super::problem::Problem;
use crate::domain::Act;
use crate::gate::GateError;
use crate::orders::OrderError;
use crate::store::StoreError;

/// `acts` are the acts that the caller may request; the problem's `allowed` lists those that the order's state
/// permits.
pub(super) fn order_problem(error: OrderError, acts: &[Act]) -> Box<Problem> {
    let detail = error.to_string();
    match error {
        OrderError::NotFound(_) => Problem::new(ORDER_NOT_FOUND, "there is no such order"),
        OrderError::NotAllowed { from, .. } => {
            let allowed: Vec<&str> = from.allowed(acts).into_iter().map(Act::as_str).collect();
            Problem::new(INVALID_TRANSITION, detail).with("from", from.as_str()).with("allowed", allowed)
        }
        OrderError::Unknown(_) | OrderError::Store(StoreError::Behind(_)) => {
            Problem::new(STATUS_UNAVAILABLE, "try again").because(detail).retry_after(1)
        }
        OrderError::Invalid(_) => Problem::new(MALFORMED, detail),
        OrderError::Store(StoreError::Broken(_)) | OrderError::Gate(GateError::Broken(_)) => {
            Problem::new(INTERNAL, "the act was not carried out").because(detail)
        }
        OrderError::Busy | OrderError::Gate(_) | OrderError::Lease(_) | OrderError::Store(_) => {
            Problem::new(ACT_UNFINISHED, "it may be half done").because(detail).retry_after(1)
        }
    }
}
