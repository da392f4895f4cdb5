//! Maps a [`ControlError`] to its problem.

use crate::control::ControlError;
use crate::front::codes::*;
use crate::front::problem::Problem;
use crate::gate::GateError;
use crate::store::StoreError;

pub(super) fn control_problem(error: ControlError) -> Box<Problem> {
    let detail = error.to_string();
    match error {
        ControlError::NotFound(_) => Problem::new(SALE_NOT_FOUND, detail),
        ControlError::Exists(_) => Problem::new(SALE_EXISTS, detail),
        ControlError::Invalid(_) => Problem::new(INVALID_SALE, detail),
        ControlError::NotFrom { state, .. } => {
            Problem::new(INVALID_TRANSITION, detail).with("state", state.as_str())
        }
        ControlError::Lost => Problem::new(INVALID_TRANSITION, detail),
        ControlError::UnknownItem => Problem::new(UNKNOWN_SKU, detail),
        ControlError::Refused(_) => Problem::new(ACT_REFUSED, detail),
        ControlError::KeyReused => Problem::new(KEY_REUSED, detail),
        ControlError::Store(StoreError::Broken(_)) | ControlError::Gate(GateError::Broken(_)) => {
            Problem::new(INTERNAL, detail)
        }
        // The act may be half done; repeating it resumes it.
        ControlError::Busy | ControlError::Gate(_) | ControlError::Store(_) => {
            Problem::new(ACT_UNFINISHED, detail).retry_after(1)
        }
    }
}
