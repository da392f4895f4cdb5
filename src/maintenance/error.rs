//! One error for all of maintenance.

use crate::control::ControlError;
use crate::gate::GateError;
use crate::lease::LeaseError;
use crate::queue::QueueError;
use crate::settlement::SettlementError;
use crate::store::StoreError;

/// Why maintenance stopped short. All of it is repeated in a later round, so a caller logs the error and
/// goes on.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// The lease was lost: another process may do the work by now.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// Redis did not do its part.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The database did not do its part.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker did not do its part.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// An act on a sale failed.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl From<SettlementError> for MaintenanceError {
    fn from(error: SettlementError) -> Self {
        match error {
            SettlementError::Gate(error) => Self::Gate(error),
            SettlementError::Store(error) => Self::Store(error),
        }
    }
}
