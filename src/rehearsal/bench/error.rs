//! The errors of a benchmark.

/// Why a benchmark did not finish.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A private server or a process did not start.
    #[error(transparent)]
    Servers(#[from] crate::rehearsal::servers::ServerError),
    /// A call to the lease failed.
    #[error(transparent)]
    Lease(#[from] crate::lease::LeaseError),
    /// A direct call to Redis failed.
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// Anything else that makes the figures meaningless.
    #[error("{0}")]
    Broken(String),
}

/// For `map_err`: an error that makes the figures meaningless.
pub(super) fn broken(error: impl std::fmt::Display) -> BenchError {
    BenchError::Broken(error.to_string())
}
