//! Why a rebuild did not finish.

use crate::audit::{Audit, AuditError};
use crate::domain::{OrderId, SaleId, SaleState};
use crate::gate::GateError;
use crate::lease::LeaseError;
use crate::queue::QueueError;
use crate::recovery::reach::ReachError;
use crate::settlement::SettlementError;
use crate::store::StoreError;

/// Why a rebuild did not finish. Nothing is lost, and it may be run again. Once a rebuild has begun, the sale stays
/// frozen until one finishes.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The database has no such sale.
    #[error("there is no sale {0}")]
    NotFound(SaleId),
    /// A draft is not in the gate yet, and an archived sale no longer is.
    #[error("a sale that is {0} is not in the gate: there is nothing to rebuild")]
    NotLoaded(SaleState),
    /// Another process holds the lease for this rebuild.
    #[error("another rebuild of {0} is under way")]
    UnderWay(SaleId),
    /// Nobody has asked for this rebuild, and the sale is not frozen.
    #[error("{0} is not frozen: it needs no rebuild")]
    NotNeeded(SaleId),
    /// A gate built from these rows would resell units that are sold according to the log.
    #[error(
        "the order log has {0} newer than its row: bring the database up to date first, with `doorbuster replay run log`"
    )]
    DatabaseBehind(OrderId),
    /// The log begins too late or has entries that this build cannot read, and the caller does not accept that.
    #[error(
        "the order log may lack orders that have no row, and they would be lost: look for the missing part, or accept the \
         loss with `doorbuster rebuild --sale {0}`"
    )]
    LogIncomplete(SaleId),
    /// The loaded gate and the database disagree; the sale stays frozen.
    #[error("the books do not balance after the rebuild; the sale stays frozen: see `doorbuster audit --sale {}`", .0.sale_id)]
    OutOfBalance(Box<Audit>),
    /// Another process closed the sale, or Redis lost writes again; the sale stays frozen.
    #[error("the gate was changed while it was being rebuilt: run it again")]
    Moved,
    /// The process was asked to stop.
    #[error("stopped: if {0} is frozen by now, it stays so until a rebuild finishes; run it again")]
    Stopped(SaleId),
    /// Redis did not answer, or refused.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The order log or the dead letters could not be read.
    #[error("the broker: {0}")]
    Queue(#[from] QueueError),
    /// The lease could not be taken.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl RebuildError {
    /// Whether the same step may succeed once a server answers again.
    pub(super) fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Gate(GateError::Unavailable(_) | GateError::Late(_)) | Self::Store(StoreError::Away(_))
        )
    }
}

impl From<AuditError> for RebuildError {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::NotFound(sale) => Self::NotFound(sale),
            AuditError::Gate(error) => Self::Gate(error),
            AuditError::Store(error) => Self::Store(error),
            AuditError::Queue(error) => Self::Queue(error),
        }
    }
}

impl From<ReachError> for RebuildError {
    fn from(error: ReachError) -> Self {
        match error {
            ReachError::Queue(error) => Self::Queue(error),
            ReachError::Store(error) => Self::Store(error),
        }
    }
}

impl From<SettlementError> for RebuildError {
    fn from(error: SettlementError) -> Self {
        match error {
            SettlementError::Gate(error) => Self::Gate(error),
            SettlementError::Store(error) => Self::Store(error),
        }
    }
}
