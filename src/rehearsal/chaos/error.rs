//! The errors of a chaos drill.

use crate::rehearsal::drill::DrillError;
use crate::rehearsal::judge::BookError;
use crate::rehearsal::servers::ServerError;

/// Why a chaos drill has no report.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// A private server did not start.
    #[error(transparent)]
    Servers(#[from] ServerError),
    /// The drill reached no verdict.
    #[error(transparent)]
    Drill(#[from] DrillError),
    /// The judge could not read the books.
    #[error(transparent)]
    Books(#[from] BookError),
    /// The tables could not be created.
    #[error("the tables could not be created: {0}")]
    Migrate(String),
    /// A fault left a server that does not start any more.
    #[error("a server that was killed does not start again on its data: {0}")]
    NotBack(String),
    /// The shop's endpoint could not be added.
    #[error("the endpoint of webhooks could not be added: {0}")]
    Endpoint(String),
}
