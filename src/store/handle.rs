//! The handle on the database, and the timeout that applies to everything that is done with it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sea_orm::sea_query::{Expr, IntoIden as _, OnConflict};
use sea_orm::{ColumnTrait, DatabaseConnection, DbBackend};
use tokio::time::Instant;

use super::error::StoreError;
use super::permits::Permits;
use super::pooler::Pooler;
use super::session::GivenUp;
use super::witnesses::Witnesses;
use crate::link::Installation;

/// Where the database is, and the limits on using it.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// `sqlite:`, `postgres:` or `mysql:`, with credentials if the server needs them.
    pub url: String,
    /// The size of the pool.
    pub connections: u32,
    /// The time limit of one transaction or query, including the wait for a connection.
    pub timeout: Duration,
    /// The installation that the database must belong to, if that is checked.
    pub installation: Installation,
}

/// A pool of connections, and the places that the database is known to have reached. Cheap to clone; all clones share
/// both.
#[derive(Clone)]
pub struct Store {
    pub(in crate::store) db: DatabaseConnection,
    pub(in crate::store) url: Arc<str>,
    pub(in crate::store) timeout: Duration,
    pub(in crate::store) given_up: GivenUp,
    pub(in crate::store) permits: Permits,
    pub(in crate::store) pooler: Pooler,
    pub(in crate::store) witnesses: Arc<Witnesses>,
    pub(in crate::store) installation: Installation,
    /// Whether changes are written down for webhooks.
    pub(in crate::store) announces: Arc<AtomicBool>,
}

impl Store {
    /// A handle with the same connections that knows no place and hears no witness. What it learns is kept apart. It has
    /// permits of its own, because callers that hold the others may wait for what it does.
    pub fn apart(&self) -> Self {
        Self { witnesses: Arc::default(), permits: self.permits.apart(), ..self.clone() }
    }

    /// A handle for those who read orders. [`READERS`] of the connections belong to it, at most half of all, so that it waits
    /// for nothing that is done through this handle and its clones. Call it once, when a process starts.
    pub fn for_readers(&self) -> Self {
        Self { permits: self.permits.of_readers(), ..self.clone() }
    }

    /// A handle for maintenance or operators, who do a few things at a time. While buyers ask the database for more than it
    /// can do, it goes before all of them that wait. Otherwise nothing would expire, be returned or logged any more, a frozen
    /// sale would stay frozen, and nobody could look at the sale.
    pub fn ahead_of_buyers(&self, at_once: usize) -> Self {
        Self { permits: self.permits.more(at_once), ..self.clone() }
    }

    /// The time limit of one transaction or query.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The connections that are in use, and how many there may be.
    pub fn connections(&self) -> (u32, u32) {
        let (open, idle) = match self.db.get_database_backend() {
            DbBackend::Postgres => {
                let pool = self.db.get_postgres_connection_pool();
                (pool.size(), pool.num_idle())
            }
            DbBackend::MySql => {
                let pool = self.db.get_mysql_connection_pool();
                (pool.size(), pool.num_idle())
            }
            _ => {
                let pool = self.db.get_sqlite_connection_pool();
                (pool.size(), pool.num_idle())
            }
        };
        (open.saturating_sub(u32::try_from(idle).unwrap_or(u32::MAX)), self.permits.connections())
    }

    /// Runs a query or a transaction within the time limit, because sqlx waits for ever for a silent server. Work that
    /// times out is rolled back or was committed, so callers repeat it with the same ids. Work for which there was no
    /// connection in time has not begun.
    pub(in crate::store) fn within<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        // On the heap, and once: moved into each of the layers below, a transaction would overflow the stack.
        let work = Box::pin(work);
        async move {
            let until = Instant::now() + self.timeout;
            let permit = self.permits.take(self.timeout).await?;
            let mut limited = std::pin::pin!(tokio::time::timeout_at(until, permit.run(work)));
            // Recorded before the work is dropped and its connection goes back to the pool, even if the caller waits no
            // longer.
            let unfinished = self.given_up.unless_finished();
            match limited.as_mut().await {
                Ok(done) => {
                    unfinished.finish();
                    done
                }
                Err(_) => {
                    Err(StoreError::Away(format!("no answer from the database within {:?}", self.timeout)))
                }
            }
        }
    }

    /// Skips a row whose key exists. `column` is part of the key.
    pub(in crate::store) fn skip_existing<C: ColumnTrait>(&self, column: C) -> OnConflict {
        match self.db.get_database_backend() {
            DbBackend::MySql => OnConflict::new().value(column, Expr::col(column.into_iden())).to_owned(),
            _ => OnConflict::new().do_nothing().to_owned(),
        }
    }
}
