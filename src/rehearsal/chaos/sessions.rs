//! Faults of the database's sessions.

use std::time::Duration;

use sqlx::Connection as _;

use super::missed::Missed;
use super::stack::Stack;
use crate::rehearsal::servers::Kind;

/// PostgreSQL: ends every client session but this one.
const END_ALL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
     WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";

/// MariaDB: lists every client session but this one.
const LIST_SESSIONS: &str = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
     WHERE id <> connection_id() AND user <> 'system user'";

/// An administrator ends every session.
pub(super) async fn end_all(stack: &Stack) -> Result<(), Missed> {
    let url = stack.url(stack.database()).await?;
    let work = async {
        if stack.database() == Kind::Postgres {
            let mut connection = sqlx::PgConnection::connect(&url).await?;
            sqlx::query(END_ALL).execute(&mut connection).await?;
            return connection.close().await;
        }
        let mut connection = sqlx::MySqlConnection::connect(&url).await?;
        let sessions: Vec<(i64,)> = sqlx::query_as(LIST_SESSIONS).fetch_all(&mut connection).await?;
        for (session,) in sessions {
            let kill = sqlx::AssertSqlSafe(format!("KILL {session}"));
            // The session may already have ended.
            let _ = sqlx::query(kill).execute(&mut connection).await;
        }
        connection.close().await
    };
    match tokio::time::timeout(Duration::from_secs(5), work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(Missed::TimedOut("the database")),
    }
}

/// Locks the items of the sale that has sold the most.
const LOCK: &str = "SELECT i.sku FROM items i JOIN \
     (SELECT sale_id FROM items ORDER BY sold DESC LIMIT 1) hottest ON hottest.sale_id = i.sale_id FOR UPDATE";

/// A session takes a lock on the hottest sale and says nothing for so long, as if its host were gone.
pub(super) async fn hold_lock(stack: &Stack, lasts: Duration) -> Result<(), Missed> {
    let url = stack.url(stack.database()).await?;
    let work = async {
        if stack.database() == Kind::Postgres {
            let mut connection = sqlx::PgConnection::connect(&url).await?;
            let mut transaction = connection.begin().await?;
            sqlx::query(LOCK).execute(&mut *transaction).await?;
            tokio::time::sleep(lasts).await;
            return transaction.rollback().await;
        }
        let mut connection = sqlx::MySqlConnection::connect(&url).await?;
        let mut transaction = connection.begin().await?;
        sqlx::query(LOCK).execute(&mut *transaction).await?;
        tokio::time::sleep(lasts).await;
        transaction.rollback().await
    };
    match tokio::time::timeout(lasts + Duration::from_secs(5), work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(Missed::TimedOut("the database")),
    }
}

/// When the oldest change was made that is not known to be in the order log; `None` if every change is.
pub(super) async fn oldest_unlogged_ms(stack: &Stack) -> Result<Option<i64>, Missed> {
    const OLDEST: &str = "SELECT MIN(at_ms) FROM log_outbox";
    let url = stack.url(stack.database()).await?;
    let work = async {
        if stack.database() == Kind::Postgres {
            let mut connection = sqlx::PgConnection::connect(&url).await?;
            let oldest = sqlx::query_scalar(OLDEST).fetch_one(&mut connection).await?;
            connection.close().await?;
            return Ok(oldest);
        }
        let mut connection = sqlx::MySqlConnection::connect(&url).await?;
        let oldest = sqlx::query_scalar(OLDEST).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok::<_, sqlx::Error>(oldest)
    };
    match tokio::time::timeout(Duration::from_secs(5), work).await {
        Ok(oldest) => Ok(oldest?),
        Err(_) => Err(Missed::TimedOut("the database")),
    }
}
