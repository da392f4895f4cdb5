//! The errors of private servers.

/// Why a private server could not be started or controlled, with what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A program is missing: install the named package.
    #[error("{0} is not installed; `make demo` and `make test` install it, or see README")]
    Missing(&'static str),
    /// The operating system returned an error.
    #[error("{what}: {source}")]
    Io {
        /// The operation, with its path or program.
        what: String,
        /// The error reported by the operating system.
        source: std::io::Error,
    },
    /// Another process holds the lock of the data folder.
    #[error("another doorbuster uses {0}; stop it, or choose another --data-dir")]
    InUse(String),
    /// The server is not RabbitMQ, so there is no control program to run.
    #[error("{0} has no control program")]
    NoControl(&'static str),
    /// The control program failed or did not answer in time.
    #[error("{what}: {answer}")]
    Refused {
        /// The command line.
        what: String,
        /// What the program wrote to standard error.
        answer: String,
    },
    /// The server ended, or did not answer in time.
    #[error("{name} did not start: {why}\n{log}")]
    NotStarted {
        /// The server's program.
        name: &'static str,
        /// Whether it ended or timed out.
        why: String,
        /// The last lines of its log.
        log: String,
    },
}

impl ServerError {
    /// For `map_err`: an I/O error with the operation that failed.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
