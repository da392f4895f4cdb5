//! Facts about the database that an operator needs before a sale: its version, its tables, and what this user may do.
//! Changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use doorbuster_migrations::{Migrator, MigratorTrait as _};
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DbBackend, Statement};
use sea_orm_migration::SchemaManager;
use sqlx::sqlite::SqliteConnectOptions;

use super::error::StoreError;
use super::handle::{Store, StoreSettings};
use super::permits::Permits;
use super::pooler::Pooler;
use super::session::GivenUp;

/// Tables, and a column of each that this build updates, if there is one.
const WRITTEN: [(&str, Option<&str>); 21] = [
    ("backup", Some("made_at_ms")),
    ("erasures", None),
    ("gate_returns", None),
    ("installation", None),
    ("items", Some("sold")),
    ("live_settings", Some("value")),
    ("log_position", Some("replay_from_ms")),
    ("log_outbox", None),
    ("operator_acts", Some("result")),
    ("order_events", None),
    ("orders", Some("status")),
    ("payment_events", Some("state")),
    ("places", Some("number")),
    ("replay_runs", Some("state")),
    ("sale_acts", Some("state")),
    ("sales", Some("state")),
    ("user_units", Some("units")),
    ("webhook_deliveries", Some("tries")),
    ("webhook_endpoints", Some("state")),
    ("webhook_events", None),
    ("webhook_sales", Some("version")),
];

/// Tables whose rows are deleted again, by a purge or when their work is done.
const DELETED: [&str; 12] = [
    "erasures",
    "gate_returns",
    "live_settings",
    "log_outbox",
    "order_events",
    "orders",
    "payment_events",
    "sale_acts",
    "user_units",
    "webhook_deliveries",
    "webhook_endpoints",
    "webhook_events",
];

/// The database, as `doorbuster doctor` sees it.
#[derive(Debug, Clone)]
pub struct DatabaseFacts {
    /// As the server reports it.
    pub version: String,
    /// Migrations that `doorbuster migrate` would run.
    pub pending: Vec<String>,
    /// Migrations in the database that this build does not know: a newer build made them.
    pub unknown: Vec<String>,
    /// Why rows cannot be written, in the server's words. Empty if they can, or if tables are missing.
    pub refused: Vec<String>,
}

/// How the tables differ from those of this build.
pub(super) struct Migrations {
    pub(super) pending: Vec<String>,
    /// Made by a newer build.
    pub(super) unknown: Vec<String>,
}

impl Store {
    /// A store for [`Store::examine`]: it creates no SQLite file and changes none. Other databases are opened as
    /// usual. Only the absence of an SQLite file is an error here.
    pub async fn open_unchanged(settings: &StoreSettings) -> Result<Self, StoreError> {
        if !settings.url.starts_with("sqlite:") {
            return Self::connect(settings).await;
        }
        if let Some(file) = missing_file(&settings.url) {
            return Err(StoreError::Away(format!("there is no file {}", file.display())));
        }
        let mut options = ConnectOptions::new(&settings.url);
        options.max_connections(1).connect_timeout(settings.timeout).sqlx_logging(false).connect_lazy(true);
        options.map_sqlx_sqlite_opts(|sqlite| {
            sqlite.read_only(true).create_if_missing(false).busy_timeout(Duration::from_secs(1))
        });
        Ok(Self {
            db: Database::connect(options).await?,
            url: settings.url.as_str().into(),
            given_up: GivenUp::default(),
            permits: Permits::for_connections(1),
            pooler: Pooler::at(&settings.url),
            timeout: settings.timeout,
            witnesses: Arc::default(),
            installation: settings.installation.clone(),
            announces: Arc::new(AtomicBool::new(true)),
        })
    }

    /// Reads version and migrations, and tries to write rows without writing any.
    pub async fn examine(&self, settings: &StoreSettings) -> Result<DatabaseFacts, StoreError> {
        let version = self.version().await?;
        let Migrations { pending, unknown } = self.migrations().await?;
        let refused = match (pending.is_empty(), self.db.get_database_backend()) {
            (false, _) => Vec::new(),
            (true, DbBackend::Sqlite) => refused_by_files(&sqlite_file(&settings.url)?),
            (true, _) => self.refused_by_server().await?,
        };
        Ok(DatabaseFacts { version, pending, unknown, refused })
    }

    async fn version(&self) -> Result<String, StoreError> {
        let query = match self.db.get_database_backend() {
            DbBackend::Postgres => "SHOW server_version",
            DbBackend::MySql => "SELECT VERSION()",
            _ => "SELECT sqlite_version()",
        };
        let statement = Statement::from_string(self.db.get_database_backend(), query);
        let row = self.within(async { Ok(self.db.query_one_raw(statement).await?) }).await?;
        Ok(row.map(|row| row.try_get_by_index(0)).transpose()?.unwrap_or_default())
    }

    /// Those that this build has, and the database has not, and the other way round.
    pub(super) async fn migrations(&self) -> Result<Migrations, StoreError> {
        let made = self.migrations_made().await?;
        let known: Vec<String> =
            Migrator::migrations().iter().map(|migration| migration.name().to_owned()).collect();
        let pending = known.iter().filter(|name| !made.contains(name)).cloned().collect();
        let unknown = made.into_iter().filter(|name| !known.contains(name)).collect();
        Ok(Migrations { pending, unknown })
    }

    /// The migrator itself would create its table to read it.
    async fn migrations_made(&self) -> Result<Vec<String>, StoreError> {
        let made = async {
            if !SchemaManager::new(&self.db).has_table("seaql_migrations").await? {
                return Ok(Vec::new());
            }
            let query = "SELECT version FROM seaql_migrations ORDER BY version";
            let statement = Statement::from_string(self.db.get_database_backend(), query);
            let rows = self.db.query_all_raw(statement).await?;
            rows.iter().map(|row| Ok(row.try_get_by_index(0)?)).collect()
        };
        self.within(made).await
    }

    /// The server checks rights before it looks for rows, and none of these statements finds one.
    async fn refused_by_server(&self) -> Result<Vec<String>, StoreError> {
        let inserts =
            WRITTEN.map(|(table, _)| format!("INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0"));
        let updates = WRITTEN.iter().filter_map(|(table, column)| {
            column.map(|column| format!("UPDATE {table} SET {column} = {column} WHERE 1 = 0"))
        });
        let deletes = DELETED.map(|table| format!("DELETE FROM {table} WHERE 1 = 0"));
        let mut refused = Vec::new();
        for statement in inserts.into_iter().chain(updates).chain(deletes) {
            let tried = self.within(async { Ok(self.db.execute_unprepared(&statement).await?) }).await;
            if let Err(error) = tried {
                refused.push(format!("{statement}: {error}"));
            }
        }
        Ok(refused)
    }
}

/// The SQLite file that a URL names and that does not exist. `None` for a file that is there, and for other databases.
pub fn missing_file(url: &str) -> Option<PathBuf> {
    let file = url.starts_with("sqlite:").then(|| sqlite_file(url).ok()).flatten()?;
    (!file.exists()).then_some(file)
}

fn sqlite_file(url: &str) -> Result<PathBuf, StoreError> {
    let options: SqliteConnectOptions =
        url.parse().map_err(|error| StoreError::Broken(format!("database.url: {error}")))?;
    Ok(options.get_filename().to_owned())
}

/// SQLite writes the file, and a journal next to it.
fn refused_by_files(file: &Path) -> Vec<String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    [file, folder]
        .into_iter()
        .filter_map(|path| {
            let refused = rustix::fs::access(path, rustix::fs::Access::WRITE_OK).err()?;
            Some(format!("{} cannot be written: {refused}", path.display()))
        })
        .collect()
}
