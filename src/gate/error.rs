use crate::link::Fault;

/// One variant per thing that a caller can do. Expected answers are [`crate::domain::Verdict`]s.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GateError {
    /// Nothing was taken. Try again later.
    #[error("the gate is not available: {0}")]
    Unavailable(String),
    /// The script may have run: ask again with the same order id or key.
    #[error("the gate did not answer: {0}")]
    Late(String),
    /// Nothing was taken: Redis is at `maxmemory`, or too many attempts wait.
    #[error("the gate is overloaded: {0}")]
    Full(String),
    /// The gate lost writes and is frozen: left to the sweep and to a rebuild.
    #[error("the gate of this sale is frozen")]
    Frozen,
    /// The sale is not in the gate.
    #[error("the sale is not loaded")]
    NotLoaded,
    /// Something no retry will mend: a reply or an entry that this version cannot read.
    #[error("the gate said something unexpected: {0}")]
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
