//! Why a replay did not finish.

use std::path::PathBuf;

use uuid::Uuid;

use crate::control::DeadLetterError;
use crate::gate::GateError;
use crate::lease::LeaseError;
use crate::queue::QueueError;
use crate::recovery::reach::ReachError;
use crate::store::StoreError;

/// Why a replay did not finish. Everything it wrote stays, and it may be run again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Another process is replaying the same source.
    #[error("another replay of {0} is under way: see `doorbuster replay list`")]
    UnderWay(&'static str),
    /// No run has this id.
    #[error("there is no replay {0}")]
    NotFound(Uuid),
    /// A finished run cannot be resumed.
    #[error("replay {0} has finished; start a new one")]
    IsDone(Uuid),
    /// A run failed after it had begun; it can be resumed.
    #[error("replay {0} failed: {1}; resume it with: doorbuster replay resume {0}")]
    Failed(Uuid, Box<ReplayError>),
    /// The database was restored again while it was being brought up to date, or a copy that was behind replaced it: some
    /// of what had been written is gone.
    #[error(
        "the database was restored again during the replay, or failed over to a copy that lacks some of it: run a new one"
    )]
    RestoredMeanwhile,
    /// The request makes no sense; nothing was done.
    #[error("{0}")]
    Usage(String),
    /// The file cannot be read.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// Redis did not answer.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// A lease could not be taken, or was lost.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker did not answer.
    #[error("the broker: {0}")]
    Queue(#[from] QueueError),
    /// A dead letter could not be published again.
    #[error(transparent)]
    DeadLetter(#[from] DeadLetterError),
}

impl From<ReachError> for ReplayError {
    fn from(error: ReachError) -> Self {
        match error {
            ReachError::Queue(error) => error.into(),
            ReachError::Store(error) => error.into(),
        }
    }
}

impl ReplayError {
    /// Whether the same call may succeed once a server is back.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Queue(_) | Self::Lease(_) => true,
            Self::Store(error) => {
                matches!(error, StoreError::Away(_) | StoreError::Locked(_) | StoreError::LeaseEnded)
            }
            Self::Gate(error) => {
                matches!(error, GateError::Unavailable(_) | GateError::Late(_) | GateError::Full(_))
            }
            _ => false,
        }
    }
}
