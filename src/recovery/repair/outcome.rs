//! The outcome of a repair.

use crate::audit::AuditError;
use crate::gate::GateError;
use crate::lease::LeaseError;
use crate::queue::PublishError;
use crate::settlement::SettlementError;
use crate::store::StoreError;

/// What was repaired and what is left, one sentence each.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Repaired {
    /// Differences that were repaired.
    pub done: Vec<String>,
    /// Differences that are still there, with the reason.
    pub left: Vec<String>,
}

/// Why one difference could not be repaired. The repair may be repeated.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// Another process holds the lease of the order's user.
    #[error("another process is acting for its user; run it again")]
    Busy,
    /// Nothing can be repaired in this gate before it is rebuilt.
    #[error("the gate does not know the sale, or is frozen: use `doorbuster rebuild`")]
    Rebuild,
    /// Redis did not answer.
    #[error(transparent)]
    Gate(GateError),
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The lease could not be taken.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The order could not be published.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The books could not be read.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

impl From<GateError> for RepairError {
    fn from(error: GateError) -> Self {
        match error {
            GateError::Frozen | GateError::NotLoaded => Self::Rebuild,
            other => Self::Gate(other),
        }
    }
}

impl From<SettlementError> for RepairError {
    fn from(error: SettlementError) -> Self {
        match error {
            SettlementError::Gate(error) => error.into(),
            SettlementError::Store(error) => error.into(),
        }
    }
}
