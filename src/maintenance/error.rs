//! One error for all of maintenance.

use crate::control::ControlError;
use crate::gate::GateError;
use crate::lease::LeaseError;
use crate::queue::QueueError;
use crate::recovery::ReachError;
use crate::settlement::SettlementError;
use crate::store::StoreError;

/// Why maintenance stopped short. A later round repeats the work, so a caller logs the error and continues.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceError {
    /// The lease was lost: another process may do the work by now.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A call to the gate failed.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// A call to the database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A call to the broker failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// Another process has been comparing the books for a long time, and is still at it.
    #[error("another process is still comparing the books")]
    ComparedElsewhere,
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

impl From<ReachError> for MaintenanceError {
    fn from(error: ReachError) -> Self {
        match error {
            ReachError::Queue(error) => Self::Queue(error),
            ReachError::Store(error) => Self::Store(error),
        }
    }
}
