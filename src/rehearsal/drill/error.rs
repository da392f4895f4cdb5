//! The errors of a drill.

/// Why a drill reached no verdict.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// A call to the stack failed, or its preparation did.
    #[error("{call}: {why}")]
    Call {
        /// The call that failed.
        call: String,
        /// The reason, or the stack's answer.
        why: String,
    },
    /// No front became ready in time. Contains the last answer of `/readyz`, or why there was none.
    #[error("the fronts do not serve: {0}")]
    NotReady(String),
    /// The operator stopped the drill. Its sale is closed.
    #[error("the drill was interrupted")]
    Interrupted,
}
