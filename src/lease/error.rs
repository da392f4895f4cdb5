//! The errors of leases.

use crate::link::Fault;

/// Why leases were not taken, renewed, released or listed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeaseError {
    /// Redis failed. If the fault says that no reply came, leases may have been taken; they are released in the
    /// background as soon as Redis answers, or they expire.
    #[error(transparent)]
    Redis(#[from] Fault),
    /// The call can never succeed as it is, because of a scope, a name, the number of names, or a duration. The
    /// text says which. Nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// The work is no longer protected.
    #[error(
        "the lease on {names} in {scope} is lost: redis did not renew it in time, or another process has it"
    )]
    Lost {
        /// The scope of the acquisition.
        scope: String,
        /// All names of the acquisition, separated by spaces.
        names: String,
    },
    /// The runtime is shutting down and ended the task that carried the call.
    #[error("the process is shutting down")]
    ShuttingDown,
}
