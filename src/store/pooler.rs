//! Recognises a pooler between this process and PostgreSQL that lends a session for each transaction, such as PgBouncer in
//! transaction mode. A setting of a session then reaches other clients, and one that does not know prepared statements
//! may run another client's.
//!
//! The test is what the pooler does, not what it calls itself: one client holds a transaction, and another one sees
//! whether its session has changed.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::sync::OnceCell;

/// What lies between this process and the sessions of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sessions {
    /// Each connection has a session of its own.
    Own,
    /// A pooler lends them for a transaction, and knows prepared statements.
    Shared,
    /// A pooler lends them for a transaction and does not know prepared statements: it cannot be used.
    Mixed,
}

/// Why [`Sessions::Mixed`] is refused.
pub(super) const MIXED: &str = "database.url leads to a pooler that shares sessions and does not know prepared \
     statements, so a query could run another client's: use PgBouncer 1.21 or later with max_prepared_statements above 0, \
     or pool_mode = session, or connect to PostgreSQL itself";

/// How long the test waits: a pooler with a single session makes the second client wait for the first.
const TIMEOUT: Duration = Duration::from_secs(2);

/// PgBouncer refuses this parameter, and no column is a floating-point number.
pub(super) fn past_poolers(options: PgConnectOptions) -> PgConnectOptions {
    options.extra_float_digits(None)
}

/// Finds out once. Clones share what was found.
#[derive(Debug, Clone)]
pub(super) struct Pooler {
    url: Arc<str>,
    found: Arc<OnceCell<Sessions>>,
}

impl Pooler {
    pub(super) fn at(url: &str) -> Self {
        Self { url: url.into(), found: Arc::default() }
    }

    /// Fails if the server cannot be reached. What was found once stays.
    pub(super) async fn sessions(&self) -> Result<Sessions, sqlx::Error> {
        self.found.get_or_try_init(|| self.look()).await.copied()
    }

    async fn look(&self) -> Result<Sessions, sqlx::Error> {
        let options: PgConnectOptions = self.url.parse()?;
        let options = past_poolers(options);
        let connect = || async {
            let connecting = PgConnection::connect_with(&options);
            tokio::time::timeout(TIMEOUT, connecting).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
        };
        let (mut one, mut other) = (connect().await?, connect().await?);
        let looked = compare(&mut one, &mut other).await;
        // An open transaction of theirs ends with the connection.
        let _ = tokio::time::timeout(TIMEOUT, one.close()).await;
        let _ = tokio::time::timeout(TIMEOUT, other.close()).await;
        match looked {
            Err(error) if is_about_statements(&error) => Ok(Sessions::Mixed),
            looked => looked,
        }
    }
}

async fn compare(one: &mut PgConnection, other: &mut PgConnection) -> Result<Sessions, sqlx::Error> {
    let first = session_of(one).await?;
    other.execute("BEGIN").await?;
    let held = session_of(other).await?;
    // Ended where the pooler has no other session to lend.
    let then = tokio::time::timeout(TIMEOUT, session_of(one)).await;
    let is_shared = held == first || !matches!(then, Ok(Ok(session)) if session == first);
    other.execute("ROLLBACK").await?;
    match then {
        Ok(then) => _ = then?,
        Err(_) if is_shared => {}
        Err(_) => return Err(sqlx::Error::PoolTimedOut),
    }
    Ok(if is_shared { Sessions::Shared } else { Sessions::Own })
}

/// The process that serves a session, asked with a named statement as every query is.
async fn session_of(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(connection).await
}

/// Whether a statement is unknown (26000) or known from another client (42P05).
fn is_about_statements(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    error.code().is_some_and(|code| ["26000", "42P05"].contains(&&*code))
}
