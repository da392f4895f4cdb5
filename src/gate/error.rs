//! The errors of the gate, by what the caller can do about them.

use crate::link::Fault;

/// One variant per thing that a caller can do. Expected answers are [`crate::domain::Verdict`]s.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GateError {
    /// Nothing was taken. Try again later.
    #[error("the gate (redis) is not available: {0}")]
    Unavailable(String),
    /// The script may have run. Repeat the call with the same order id or key.
    #[error("the gate (redis) did not answer: {0}")]
    Late(String),
    /// Nothing was taken: Redis is at `maxmemory`, or too many attempts are waiting.
    #[error("the gate (redis) is overloaded: {0}")]
    Full(String),
    /// The gate has lost writes and is frozen. The sweep and a rebuild take care of it.
    #[error("the gate of this sale is frozen")]
    Frozen,
    /// Nothing was done: what the caller says was read before the database went back and began a new line. Read it again.
    #[error("the database has gone back since this was read")]
    Outdated,
    /// The sale is not in the gate.
    #[error("the sale is not loaded")]
    NotLoaded,
    /// A retry does not help: this version cannot read the reply or an entry.
    #[error("the gate (redis) answered unexpectedly: {0}")]
    Broken(String),
}

impl From<Fault> for GateError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unavailable(text) => Self::Unavailable(text),
            Fault::Late(text) => Self::Late(text),
            Fault::Full(text) => Self::Full(text),
            Fault::NoScript => Self::Unavailable(fault.to_string()),
            Fault::Broken(text) => Self::Broken(text),
        }
    }
}
