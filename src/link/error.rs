//! The one judgement that matters about a failed Redis command: may it have run?

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a command failed, by what the caller can do about it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Fault {
    /// The command did not run and may be sent again.
    #[error("redis is not available: {0}")]
    Unavailable(String),
    /// The command may have run: no reply came.
    #[error("redis did not answer: {0}")]
    Late(String),
    /// The command did not run, because Redis is at `maxmemory`.
    #[error("redis is full: {0}")]
    Full(String),
    /// The script did not run, because Redis does not know it: the server restarted, or its scripts were flushed.
    #[error("redis does not know the script")]
    NoScript,
    /// Redis gave a reply that no retry changes.
    #[error("redis answered unexpectedly: {0}")]
    Broken(String),
}

impl Fault {
    /// The same, saying which server it was.
    pub(super) fn at(self, address: &str) -> Self {
        let named = |text: String| format!("{address}: {text}");
        match self {
            Self::Unavailable(text) => Self::Unavailable(named(text)),
            Self::Late(text) => Self::Late(named(text)),
            Self::Full(text) => Self::Full(named(text)),
            Self::Broken(text) => Self::Broken(named(text)),
            Self::NoScript => Self::NoScript,
        }
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        let text = error.to_string();
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::NoScript) => Fault::NoScript,
            ErrorKind::Server(ServerErrorKind::ResponseError) if text.contains("OOM ") => Fault::Full(text),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::ExecAbort,
            )
            | ErrorKind::AuthenticationFailed => Fault::Unavailable(text),
            _ if matches!(error.code(), Some("OOM")) => Fault::Full(text),
            _ if matches!(error.code(), Some("MISCONF" | "NOAUTH" | "NOPERM" | "NOREPLICAS")) => {
                Fault::Unavailable(text)
            }
            // A name lookup fails before anything is sent.
            _ if error.is_connection_refusal() || text.contains("lookup address") => {
                Fault::Unavailable(format!("{text}; is it running, and is redis.url right?"))
            }
            _ if error.is_timeout() || error.is_connection_dropped() || error.is_io_error() => {
                Fault::Late(text)
            }
            _ => Fault::Broken(text),
        }
    }
}

/// The URL of a Redis that cannot be parsed. The operator corrects the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(pub(super) String);

/// An error with its causes: that of an HTTP client, say, is only "connect" by itself.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
