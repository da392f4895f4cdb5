//! The line before the connections of a pool.
//!
//! Whoever waits in it leaves when half of their time is up, so whoever gets a connection has time to use it. If all waited
//! until their time was up, then once more is asked than the database can do in that time, each would get a connection
//! too late: the query would be cancelled, its connection closed, and nothing would be done any more, long after what had
//! caused the line. A pool has such a line, but counts the opening and testing of a connection as waiting.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::StoreError;

tokio::task_local! {
    /// Set while work runs that has had its turn: what it does in parts needs no further one.
    static HAS_TURN: ();
}

/// The line; clones share it.
#[derive(Debug, Clone)]
pub(in crate::store) struct Line {
    places: Arc<Semaphore>,
    of: u32,
}

/// The part of the time limit that may be waited.
const WAITED: u32 = 2;

impl Line {
    /// A line to so many connections.
    pub(super) fn to(connections: u32) -> Self {
        Self { places: Arc::new(Semaphore::new(connections as usize)), of: connections }
    }

    /// Another line to the same connections.
    pub(super) fn another(&self) -> Self {
        Self::to(self.of)
    }

    /// Waits for a turn, for at most half of `limit`. Work that is part of other work has the turn of that.
    pub(super) async fn turn(&self, limit: Duration) -> Result<Turn, StoreError> {
        if HAS_TURN.try_with(|()| ()).is_ok() {
            return Ok(Turn { _place: None });
        }
        let place = tokio::time::timeout(limit / WAITED, self.places.clone().acquire_owned()).await;
        match place {
            Ok(Ok(place)) => Ok(Turn { _place: Some(place) }),
            Ok(Err(_)) | Err(_) => {
                metrics::counter!("database_overload_total").increment(1);
                let (of, waited) = (self.of, limit / WAITED);
                Err(StoreError::Away(format!(
                    "none of its {of} connections was free within {waited:?}: it is slow or silent, or more is asked of \
                     it than they can do (database.connections)"
                )))
            }
        }
    }
}

/// Runs work without a turn, because others who have theirs may wait for it. It must be short, and one at a time.
pub(in crate::store) async fn ahead_of_the_line<T>(work: impl Future<Output = T>) -> T {
    HAS_TURN.scope((), work).await
}

/// A turn: one connection is free.
pub(super) struct Turn {
    _place: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// Runs work, and keeps the turn until it is done.
    pub(super) async fn take<T>(self, work: impl Future<Output = T>) -> T {
        HAS_TURN.scope((), work).await
    }
}
