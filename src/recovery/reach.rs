//! How far back the order log reaches, and how far back it is needed: a database that is older than its beginning cannot
//! be brought up to date.

use std::time::Duration;

use crate::audit::AuditError;
use crate::domain::{CLOCK_SKEW, Millis};
use crate::queue::{OrderLog, QueueError};
use crate::store::{Store, StoreError};

/// The log or the database did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The log cannot be read.
    #[error("the broker: {0}")]
    Queue(#[from] QueueError),
    /// The database cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<ReachError> for AuditError {
    fn from(error: ReachError) -> Self {
        match error {
            ReachError::Queue(error) => error.into(),
            ReachError::Store(error) => error.into(),
        }
    }
}

/// The time from which on the log is complete, if it lacks earlier entries: the broker has deleted them, or the log was
/// started again when there were sales already. `None`: it has everything that ever happened.
pub async fn log_begins_at(log: &OrderLog, store: &Store) -> Result<Option<Millis>, ReachError> {
    let head = log.head().await?;
    let Some(at) = head.at else { return Ok(None) };
    if head.offset > 0 {
        return Ok(Some(at));
    }
    let older = store.sales().await?.iter().any(|row| row.created_at.plus(CLOCK_SKEW) < at);
    Ok(older.then_some(at))
}

/// How much earlier than the database's own position reading begins: clocks differ, and entries are published a moment
/// after they are made.
const EARLIER: Duration = Duration::from_secs(60);

/// From when on the log may have entries that the database lacks; `None` if the database does not say, so that all of
/// the log is needed.
pub async fn log_needed_from(store: &Store) -> Result<Option<Millis>, StoreError> {
    Ok(store.replay_from().await?.map(|from| from.minus(EARLIER)))
}
