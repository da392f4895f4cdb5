//! Opens the pool, creates the tables, and reports the kind of database.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use doorbuster_migrations::{Migrator, MigratorTrait as _};
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DbBackend};
use sqlx::PgConnection;
use sqlx::pool::PoolOptions;

use super::error::StoreError;
use super::examine::Migrations;
use super::handle::{Store, StoreSettings};
use super::permits::Permits;
use super::pooler::{MIXED, Pooler, Sessions, past_poolers};
use super::session::{GivenUp, SessionLimits, Silence};
use super::witnesses::{Doubts, Witnesses};
use crate::link::InstallationId;

impl Store {
    /// Opens the pool without waiting for a server: connections are made when they are first used.
    pub async fn connect(settings: &StoreSettings) -> Result<Self, StoreError> {
        let mut options = ConnectOptions::new(&settings.url);
        options
            .max_connections(settings.connections)
            .min_connections(0)
            // Ends before the limit of the whole query, whose error would not say that there was no connection.
            .acquire_timeout(settings.timeout * 9 / 10)
            .idle_timeout(Some(Duration::from_secs(300)))
            .sqlx_logging(false)
            .connect_lazy(true);
        let busy = settings.timeout;
        options.map_sqlx_sqlite_opts(move |sqlite| {
            use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
            sqlite
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                // In WAL mode `normal` can lose the last commits in a power cut, after their messages were
                // acknowledged.
                .synchronous(SqliteSynchronous::Full)
                .busy_timeout(busy)
        });
        let witnesses = Arc::new(Witnesses::default());
        let given_up = GivenUp::default();
        let limits = SessionLimits::new(settings.timeout);
        let pooler = Pooler::at(&settings.url);
        options.map_sqlx_postgres_opts(past_poolers);
        look_after_connections(&mut options, &witnesses.doubts_of_pool(), limits, &given_up, &pooler);
        let store = Self {
            db: tokio::time::timeout(settings.timeout, Database::connect(options))
                .await
                .map_err(|_| StoreError::Away("no answer from the database".into()))??,
            url: settings.url.as_str().into(),
            timeout: settings.timeout,
            witnesses,
            given_up,
            permits: Permits::for_connections(settings.connections),
            pooler,
            installation: settings.installation.clone(),
            announces: Arc::new(AtomicBool::new(true)),
        };
        Ok(store)
    }

    /// Creates or upgrades the tables. Repeating it is harmless, also with an older build: the tables of a newer one serve it
    /// too.
    pub async fn create_tables(&self) -> Result<(), StoreError> {
        let is_sqlite = self.db.get_database_backend() == DbBackend::Sqlite;
        if !is_sqlite && let Some(mixed) = self.mixes_statements().await? {
            return Err(StoreError::Broken(mixed.into()));
        }
        let Migrations { pending, unknown } = self.migrations().await?;
        if pending.is_empty() {
            return Ok(());
        }
        if !unknown.is_empty() {
            let (unknown, pending) = (unknown.join(", "), pending.join(", "));
            let why = format!(
                "a newer build has made {unknown}, and without {pending}: migrate with a newer build"
            );
            return Err(StoreError::Broken(why));
        }
        if is_sqlite {
            return Ok(Migrator::up(&self.db, None).await?);
        }
        // A change of a large table takes longer than the sessions of the pool may.
        let mut options = ConnectOptions::new(&*self.url);
        options.max_connections(1).acquire_timeout(self.timeout).sqlx_logging(false);
        options.map_sqlx_postgres_opts(past_poolers);
        let unlimited = Database::connect(options).await?;
        let migrated = Migrator::up(&unlimited, None).await;
        let _ = unlimited.close().await;
        Ok(migrated?)
    }

    /// Creates or upgrades the tables, and gives the database the id of its installation if it has none: the one that
    /// other servers have shown, or a new one. Repeating it is harmless.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.create_tables().await?;
        let id = self.installation.id().unwrap_or_else(InstallationId::generate);
        self.found_installation(id).await
    }

    /// Checks that the database answers, has every table that this build needs, and is not known to be behind.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.check_tables().await?;
        self.ensure_current().await
    }

    /// Checks that the database answers and has every table that this build needs.
    pub async fn check_tables(&self) -> Result<(), StoreError> {
        self.within(async {
            // The last tables and columns of each migration.
            for query in [
                "SELECT 1 FROM orders, user_units WHERE 1 = 0",
                "SELECT told_seq FROM sales, gate_returns, sale_acts, payment_events WHERE 1 = 0",
                "SELECT 1 FROM log_outbox, replay_runs WHERE 1 = 0",
                "SELECT 1 FROM places, log_position, installation, backup WHERE 1 = 0",
                "SELECT 1 FROM operator_acts, erasures, live_settings WHERE 1 = 0",
                "SELECT types FROM webhook_endpoints, webhook_sales WHERE 1 = 0",
            ] {
                self.db.execute_unprepared(query).await?;
            }
            Ok(())
        })
        .await
    }

    /// How many transactions the database can serve at once: SQLite has one writer.
    pub fn writers(&self) -> usize {
        if self.db.get_database_backend() == DbBackend::Sqlite { 1 } else { usize::MAX }
    }

    /// The kind of database: `sqlite`, `postgresql` or `mysql` (also for MariaDB).
    pub fn engine(&self) -> &'static str {
        match self.db.get_database_backend() {
            DbBackend::Sqlite => "sqlite",
            DbBackend::Postgres => "postgresql",
            DbBackend::MySql => "mysql",
            _ => "another database",
        }
    }

    /// Closes the pool, and with it all clones of this handle.
    pub async fn close(self) {
        let _ = self.db.close().await;
    }
}

/// What happens to each connection: a new one gets the limits of its session, and has the database compared with its
/// witnesses, since it may lead to another server. One that was idle and does not answer is closed before it is used, and
/// so is one that is still busy with what was given up.
fn look_after_connections(
    options: &mut ConnectOptions,
    doubts: &Doubts,
    limits: SessionLimits,
    given_up: &GivenUp,
    pooler: &Pooler,
) {
    let pooler = pooler.clone();
    let (sqlite, postgres, mysql) = (doubts.clone(), doubts.clone(), doubts.clone());
    let (of_postgres, of_mysql) = (given_up.clone(), given_up.clone());
    options
        // It has no time limit; the one below does.
        .test_before_acquire(false)
        .map_sqlx_sqlite_pool_opts(move |pool| {
            let doubts = sqlite.clone();
            pool.after_connect(move |_, _| {
                doubts.raise();
                Box::pin(std::future::ready(Ok(())))
            })
        })
        .map_sqlx_postgres_pool_opts(move |pool| {
            let doubts = postgres.clone();
            let pooler = pooler.clone();
            let pool = pool.after_connect(move |connection, _| {
                doubts.raise();
                let pooler = pooler.clone();
                Box::pin(async move { limit_session(connection, limits, &pooler).await })
            });
            let given_up = of_postgres.clone();
            tested(pool, limits).after_release(move |connection, _| {
                let given_up = given_up.clone();
                Box::pin(async move { given_up.check(connection).await.map(|()| true) })
            })
        })
        .map_sqlx_mysql_pool_opts(move |pool| {
            let doubts = mysql.clone();
            let pool = pool.after_connect(move |connection, _| {
                doubts.raise();
                Box::pin(limits.set_in_mysql(connection))
            });
            let given_up = of_mysql.clone();
            tested(pool, limits).after_release(move |connection, _| {
                let given_up = given_up.clone();
                Box::pin(async move { given_up.check_mysql(connection).await.map(|()| true) })
            })
        });
}

/// Limits a session of PostgreSQL, unless a pooler lends it to others as well: then its role has limits, which the start
/// checks.
async fn limit_session(
    connection: &mut PgConnection,
    limits: SessionLimits,
    pooler: &Pooler,
) -> Result<(), sqlx::Error> {
    match pooler.sessions().await {
        Ok(Sessions::Shared) => Ok(()),
        Ok(Sessions::Mixed) => {
            tracing::error!("{MIXED}");
            Err(sqlx::Error::Configuration(MIXED.into()))
        }
        // Not known yet: there may have been no room for two more connections.
        Ok(Sessions::Own) | Err(_) => limits.set_in_postgres(connection).await,
    }
}

/// A connection that was in use so recently is used again without a test. On a busy pool each test would be a round trip
/// more, which costs as much as most of the queries.
const FRESH: Duration = Duration::from_millis(100);

/// A pool that uses no connection which was idle and does not answer.
fn tested<DB: sqlx::Database>(pool: PoolOptions<DB>, limits: SessionLimits) -> PoolOptions<DB> {
    let silence = Silence::new(limits);
    pool.before_acquire(move |connection, idle| {
        let silence = silence.clone();
        Box::pin(async move {
            if idle.idle_for >= FRESH {
                silence.test(connection, idle.idle_for).await?;
            }
            Ok(true)
        })
    })
}

/// A database URL that cannot be parsed, with the driver's reason.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct UnreadableUrl(String);

/// Checks that a URL can be parsed, without connecting to it.
pub fn check_url(url: &str) -> Result<(), UnreadableUrl> {
    let scheme = url.split(':').next().unwrap_or_default();
    let parsed = match scheme {
        "sqlite" => url.parse::<sqlx::sqlite::SqliteConnectOptions>().map(|_| ()),
        "mysql" => url.parse::<sqlx::mysql::MySqlConnectOptions>().map(|_| ()),
        _ => url.parse::<sqlx::postgres::PgConnectOptions>().map(|_| ()),
    };
    parsed.map_err(|error| UnreadableUrl(error.to_string()))
}
