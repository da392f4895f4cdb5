//! The handle on the database, and the timeout that applies to everything that is done with it.

use std::sync::Arc;
use std::time::Duration;

use sea_orm::DatabaseConnection;

use super::error::StoreError;
use super::witnesses::Witnesses;

/// Where the database is, and the limits on using it.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// `sqlite:`, `postgres:` or `mysql:`, with credentials if the server needs them.
    pub url: String,
    /// The size of the pool.
    pub connections: u32,
    /// The time limit of one transaction or query, including the wait for a connection.
    pub timeout: Duration,
}

/// A pool of connections, and the places that the database is known to have reached. Cheap to clone; all clones share
/// both.
#[derive(Clone)]
pub struct Store {
    pub(in crate::store) db: DatabaseConnection,
    pub(in crate::store) timeout: Duration,
    pub(in crate::store) witnesses: Arc<Witnesses>,
}

impl Store {
    /// The time limit of one transaction or query.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Runs a query or a transaction within the time limit, because sqlx waits for ever for a silent server. Work that
    /// times out is rolled back or was committed, so callers repeat it with the same ids.
    pub(in crate::store) async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|_| {
            Err(StoreError::Away(format!("no answer from the database within {:?}", self.timeout)))
        })
    }
}
