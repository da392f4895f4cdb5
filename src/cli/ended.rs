//! How a command ends, and the exit code for it: scripts and supervisors read nothing else.

use std::process::ExitCode;

use crate::audit::AuditError;
use crate::control::{ControlError, DeadLetterError};
use crate::domain::Invalid;
use crate::lease::LeaseError;
use crate::orders::OrderError;
use crate::process::{Mistakes, StartError};
use crate::recovery::replay::{ExportError, ReplayError};
use crate::recovery::{ReachError, RebuildError};
use crate::rehearsal::drill::DrillError;
use crate::rehearsal::servers::ServerError;
use crate::store::StoreError;

/// The outcome of a command that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Exit code 0.
    Done,
    /// Exit code 3: it finished, and something is left to do.
    ItemsLeft,
    /// Exit code 4.
    OutOfBalance,
}

impl Ended {
    pub(super) fn exit_code(self) -> ExitCode {
        match self {
            Self::Done => ExitCode::SUCCESS,
            Self::ItemsLeft => ExitCode::from(3),
            Self::OutOfBalance => ExitCode::from(4),
        }
    }
}

/// Why a command failed. Printed to standard error as one line, or a few.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Config(#[from] Mistakes),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Servers(#[from] ServerError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Reach(#[from] ReachError),
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    DeadLetters(#[from] DeadLetterError),
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Drill(#[from] DrillError),
    /// The caller asked for something that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Any other error, with its message.
    #[error("{0}")]
    Other(String),
}

impl Failed {
    /// 2 if the caller has to change the command, 1 if the same command may succeed later.
    pub(super) fn exit_code(&self) -> ExitCode {
        let mistyped = matches!(
            self,
            Self::Config(_)
                | Self::Start(StartError::OtherInstallation(_) | StartError::NewDatabase { .. })
                | Self::Invalid(_)
                | Self::Usage(_)
                | Self::Order(OrderError::Invalid(_))
                | Self::Lease(LeaseError::Invalid(_))
                | Self::Replay(ReplayError::Usage(_))
        );
        ExitCode::from(if mistyped { 2 } else { 1 })
    }
}
