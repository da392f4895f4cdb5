//! The limits of a session, which the server enforces: it ends what this process has given up, and what a process began
//! whose host or network is gone. Otherwise a transaction that nobody ends would keep its rows locked for hours.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sea_orm::{ConnectionTrait as _, DatabaseTransaction, DbBackend};
use sqlx::{Connection, Executor as _, MySqlConnection, PgConnection, Row as _};

use super::error::StoreError;

/// How much longer the server waits than this process does.
const LONGER: Duration = Duration::from_secs(1);

/// The longest wait for a row that another transaction has locked. Normally a transaction holds an item's row for some
/// milliseconds. One that holds it longer has stalled, and the rest of a batch goes on without that row. Longer than
/// PostgreSQL waits before it looks for a deadlock (1 s): of two transactions that wait for each other it then ends one,
/// and the other goes on. Otherwise both would give up at the same moment.
const LOCK_WAIT: Duration = Duration::from_millis(1500);

/// How long after work was given up its connection may be released, on a very busy machine.
const RELEASED_WITHIN: Duration = Duration::from_secs(10);

/// The longest test of a connection.
const PING: Duration = Duration::from_secs(1);

/// The longest test of a connection that was last used before another one of its pool was silent.
const BRIEF_PING: Duration = Duration::from_millis(100);

/// The limits of each session.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionLimits {
    /// The time limit of this process.
    timeout: Duration,
}

impl SessionLimits {
    /// For a process that gives up a query or a transaction after `timeout`.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout }
    }

    fn server(self) -> Duration {
        self.timeout + LONGER
    }

    fn lock_wait(self) -> Duration {
        self.timeout.min(LOCK_WAIT)
    }

    /// The limit of this name in PostgreSQL.
    pub(super) fn of_role(self, name: &str) -> Duration {
        if name == "lock_timeout" { self.lock_wait() } else { self.server() }
    }

    /// Sets them in PostgreSQL. A server that does not know one of them works without it.
    pub(super) async fn set_in_postgres(self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let (server, seconds) = (self.server().as_millis(), self.server().as_secs().max(2));
        let limits = [
            ("statement_timeout", server),
            ("idle_in_transaction_session_timeout", server),
            ("lock_timeout", self.lock_wait().as_millis()),
            ("tcp_user_timeout", server),
            ("tcp_keepalives_idle", u128::from(seconds / 2)),
            ("tcp_keepalives_interval", 1),
            ("tcp_keepalives_count", u128::from(seconds / 2)),
            // Since PostgreSQL 14: a query ends soon after its client has closed the connection.
            ("client_connection_check_interval", LONGER.as_millis()),
        ];
        let wanted = limits.map(|(name, value)| format!("('{name}', '{value}')")).join(", ");
        let set = format!(
            "SELECT set_config(name, wanted.value, false) FROM pg_settings JOIN (VALUES {wanted}) AS wanted (name, value) \
             USING (name)"
        );
        connection.execute(sqlx::AssertSqlSafe(set)).await?;
        Ok(())
    }

    /// Sets them in MariaDB or MySQL. MySQL has none for a session that is idle in a transaction.
    pub(super) async fn set_in_mysql(self, connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        let version: String = connection.fetch_one("SELECT VERSION()").await?.try_get(0)?;
        let seconds = self.server().as_secs().max(1);
        let lock_wait = self.lock_wait().as_secs().max(1);
        let set = if version.contains("MariaDB") {
            format!(
                "SET SESSION max_statement_time = {seconds}, idle_transaction_timeout = {seconds}, \
                 innodb_lock_wait_timeout = {lock_wait}"
            )
        } else {
            let millis = self.server().as_millis();
            format!("SET SESSION max_execution_time = {millis}, innodb_lock_wait_timeout = {lock_wait}")
        };
        connection.execute(sqlx::AssertSqlSafe(set)).await?;
        Ok(())
    }
}

/// Has a transaction of several sales wait only a quarter of a second for each lock, in PostgreSQL: while it waits for an
/// item, it holds those before it, and other batches wait for these. The others count lock waits in seconds.
pub(in crate::store) async fn wait_briefly_for_locks(
    transaction: &DatabaseTransaction,
) -> Result<(), StoreError> {
    if transaction.get_database_backend() == DbBackend::Postgres {
        transaction.execute_unprepared("SET LOCAL lock_timeout = '250ms'").await?;
    }
    Ok(())
}

/// When something happened last. Clones share it.
#[derive(Debug, Clone, Default)]
struct Last(Arc<Mutex<Option<Instant>>>);

impl Last {
    fn set(&self, at: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    fn is_younger_than(&self, age: Duration) -> bool {
        let at = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| at.elapsed() < age)
    }
}

/// When work was last given up whose connection may still be busy with it. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct GivenUp(Last);

impl GivenUp {
    /// Records that work is given up, unless it finishes before this is dropped.
    pub(super) fn unless_finished(&self) -> Unfinished {
        Unfinished { given_up: self.clone(), is_finished: false }
    }

    /// Fails if a connection that is released is still busy with what was given up: the pool then closes it. It would
    /// wait for the answer for as long as the server takes.
    pub(super) async fn check<C: Connection>(&self, released: &mut C) -> Result<(), sqlx::Error> {
        if self.0.is_younger_than(PING) { answers(released).await } else { Ok(()) }
    }

    /// The same for MySQL, where it also ends a transaction that the driver does not know of: sqlx counts it only when BEGIN
    /// is answered, so one whose caller is gone by then would go back to the pool open. Later readings would see what it
    /// saw at first, and nothing that is written over this connection would be committed.
    pub(super) async fn check_mysql(&self, released: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        if !self.0.is_younger_than(RELEASED_WITHIN) {
            return Ok(());
        }
        let rolled_back = tokio::time::timeout(PING, released.execute("ROLLBACK")).await;
        rolled_back.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map(|_| ())
    }
}

/// Work whose end is not known yet.
pub(super) struct Unfinished {
    given_up: GivenUp,
    is_finished: bool,
}

impl Unfinished {
    pub(super) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_finished {
            self.given_up.0.set(Instant::now());
        }
    }
}

/// The tests of a pool's connections, and when the last full-length one that got no answer began. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Silence {
    full_length: Duration,
    began: Last,
}

impl Silence {
    /// None yet. A caller must be able to finish a test of full length in its own time.
    pub(super) fn new(limits: SessionLimits) -> Self {
        Self { full_length: PING.min(limits.timeout / 4), began: Last::default() }
    }

    /// Fails if a connection that was idle for so long does not answer within a second. It gets a tenth of a second if
    /// another one has not answered within a second since it was last used: the way to the server is then probably gone
    /// for both, and a caller, whose own time is limited, may meet a dead connection at each of its queries.
    ///
    /// Only a test of full length counts as silence. Otherwise a server that is merely slow would lose one connection after
    /// the other.
    pub(super) async fn test<C: Connection>(
        &self,
        connection: &mut C,
        idle_for: Duration,
    ) -> Result<(), sqlx::Error> {
        let began = Instant::now();
        let is_brief = self.began.is_younger_than(idle_for);
        let limit = if is_brief { BRIEF_PING.min(self.full_length) } else { self.full_length };
        let answered = tokio::time::timeout(limit, connection.ping()).await;
        answered.unwrap_or_else(|_| {
            if !is_brief {
                self.began.set(began);
            }
            Err(sqlx::Error::PoolTimedOut)
        })
    }
}

/// Fails if a connection does not answer soon: the server or the way to it is gone, which TCP may notice after minutes.
async fn answers<C: Connection>(connection: &mut C) -> Result<(), sqlx::Error> {
    tokio::time::timeout(PING, connection.ping()).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}
