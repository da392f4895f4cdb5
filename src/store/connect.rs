//! Opening the pool, and the settings without which a COMMIT would not mean what it says.

use std::time::Duration;

use doorbuster_migrations::{Migrator, MigratorTrait as _};
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DbBackend, Statement};

use super::{Store, StoreError, StoreSettings};

impl Store {
    /// Opens the pool. Waits for no server: connections are made when they are needed.
    pub async fn connect(settings: &StoreSettings) -> Result<Self, StoreError> {
        let mut options = ConnectOptions::new(&settings.url);
        options
            .max_connections(settings.connections)
            .min_connections(0)
            .connect_timeout(settings.timeout)
            .acquire_timeout(settings.timeout)
            .idle_timeout(Some(Duration::from_secs(300)))
            .sqlx_logging(false)
            .connect_lazy(true);
        options.map_sqlx_sqlite_opts(|sqlite| {
            use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
            sqlite
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                // In WAL mode `normal` forgets the last commits at a power cut, after the message
                // was acknowledged.
                .synchronous(SqliteSynchronous::Full)
                .busy_timeout(Duration::from_secs(5))
        });
        let store = Self {
            db: tokio::time::timeout(settings.timeout, Database::connect(options))
                .await
                .map_err(|_| StoreError::Away("no answer from the database".into()))??,
            timeout: settings.timeout,
        };
        Ok(store)
    }

    /// Creates or upgrades the tables. May be repeated.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        Ok(Migrator::up(&self.db, None).await?)
    }

    /// Is the database there, with all its tables, as this build needs them?
    pub async fn check(&self) -> Result<(), StoreError> {
        self.within(async {
            // What each migration made last.
            for query in [
                "SELECT 1 FROM orders, user_units WHERE 1 = 0",
                "SELECT told_seq FROM sales, gate_returns, sale_acts, payment_events WHERE 1 = 0",
                "SELECT 1 FROM log_outbox, replay_runs WHERE 1 = 0",
            ] {
                self.db.execute_unprepared(query).await?;
            }
            Ok(())
        })
        .await
    }

    /// Transactions that it can serve at once: SQLite has one writer.
    pub fn writers(&self) -> usize {
        if self.db.get_database_backend() == DbBackend::Sqlite { 1 } else { usize::MAX }
    }

    pub fn engine(&self) -> &'static str {
        match self.db.get_database_backend() {
            DbBackend::Sqlite => "sqlite",
            DbBackend::Postgres => "postgresql",
            DbBackend::MySql => "mysql",
            _ => "another database",
        }
    }

    /// The settings of the database that break a promise, each with what to change.
    pub async fn broken_promises(&self) -> Result<Vec<String>, StoreError> {
        let checks: &[(&str, &str, &str)] = match self.db.get_database_backend() {
            DbBackend::Postgres => &[
                ("SHOW fsync", "on", "fsync = on"),
                ("SHOW synchronous_commit", "on remote_write remote_apply local", "synchronous_commit = on"),
                ("SHOW full_page_writes", "on", "full_page_writes = on"),
            ],
            DbBackend::MySql => &[(
                "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)",
                "1",
                "innodb_flush_log_at_trx_commit = 1",
            )],
            _ => &[],
        };
        let mut wrong = Vec::new();
        for (query, good, setting) in checks {
            let statement = Statement::from_string(self.db.get_database_backend(), *query);
            let row = self.within(async { Ok(self.db.query_one_raw(statement).await?) }).await?;
            let value: String = row.map(|row| row.try_get_by_index(0)).transpose()?.unwrap_or_default();
            if !good.split(' ').any(|good| good == value) {
                wrong.push(format!(
                    "the database has {query:?} = {value}: a committed order could be lost at a power cut; set {setting}"
                ));
            }
        }
        Ok(wrong)
    }

    pub async fn close(self) {
        let _ = self.db.close().await;
    }
}

/// Can the URL be read? Says nothing of whether anybody answers there.
pub fn check_url(url: &str) -> Result<(), String> {
    let scheme = url.split(':').next().unwrap_or_default();
    let read = match scheme {
        "sqlite" => url.parse::<sqlx::sqlite::SqliteConnectOptions>().map(|_| ()),
        "mysql" => url.parse::<sqlx::mysql::MySqlConnectOptions>().map(|_| ()),
        _ => url.parse::<sqlx::postgres::PgConnectOptions>().map(|_| ()),
    };
    read.map_err(|error| error.to_string())
}
