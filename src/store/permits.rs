//! Permits to use the pool: as many as it has connections.
//!
//! A caller waits for a permit for at most half of its time limit, so whoever gets one has time left to use it. The pool
//! has a queue of its own, but there a caller waits until its limit is up. Once the database is asked for more than it can
//! do within that limit, every caller gets its connection too late: its query is cancelled, the connection is closed, and
//! no query finishes any more, even after the cause is gone. A shorter limit in the pool does not help, because opening
//! and testing a connection counts against it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::StoreError;

tokio::task_local! {
    /// Set while work runs under a permit, so that the queries inside it take no second one.
    static HAS_PERMIT: ();
}

/// The permits; clones share them.
#[derive(Debug, Clone)]
pub(in crate::store) struct Permits {
    free: Arc<Semaphore>,
    connections: u32,
}

/// The connections of a front that only those who read orders use.
pub const READERS: u32 = 2;

/// A caller waits for at most one in so many parts of its time limit.
const WAITED: u32 = 2;

impl Permits {
    /// One for each connection.
    pub(super) fn for_connections(connections: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(connections as usize)), connections }
    }

    /// How many connections they are for.
    pub(super) fn connections(&self) -> u32 {
        self.connections
    }

    /// As many again, for the same connections.
    pub(super) fn apart(&self) -> Self {
        Self::for_connections(self.connections)
    }

    /// Takes away [`READERS`] permits that are free, at most half of all, for those who read. With a single connection, both
    /// share its permit.
    pub(super) fn of_readers(&self) -> Self {
        let wanted = READERS.min(self.connections / 2);
        let taken = u32::try_from(self.free.forget_permits(wanted as usize)).unwrap_or(0);
        if taken == 0 { self.clone() } else { Self::for_connections(taken) }
    }

    /// So many more for the same connections. Their holders wait in the queue of the pool, behind those who have a permit,
    /// and not behind those who wait for one.
    pub(super) fn more(&self, permits: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(permits)), connections: self.connections }
    }

    /// Takes a permit, unless the caller already works under one. Waits for at most half of `limit`.
    pub(super) async fn take(&self, limit: Duration) -> Result<Permit, StoreError> {
        if HAS_PERMIT.try_with(|()| ()).is_ok() {
            return Ok(Permit { _taken: None });
        }
        let waited = limit / WAITED;
        match tokio::time::timeout(waited, self.free.clone().acquire_owned()).await {
            Ok(Ok(taken)) => Ok(Permit { _taken: Some(taken) }),
            Ok(Err(_)) | Err(_) => {
                metrics::counter!("doorbuster_database_overload_total").increment(1);
                Err(StoreError::Away(format!(
                    "no connection was free within {waited:?}: it is away, slow or silent, or more is asked of it than its \
                     connections can do (database.connections)"
                )))
            }
        }
    }
}

/// Runs work that takes no permit, because callers that hold all of them may be waiting for it. It must be short, and run
/// once at a time.
pub(in crate::store) async fn without_permit<T>(work: impl Future<Output = T>) -> T {
    HAS_PERMIT.scope((), work).await
}

/// One connection is free for its holder.
pub(super) struct Permit {
    _taken: Option<OwnedSemaphorePermit>,
}

impl Permit {
    /// Runs work, and returns the permit when it is done.
    pub(super) async fn run<T>(self, work: impl Future<Output = T>) -> T {
        HAS_PERMIT.scope((), work).await
    }
}
