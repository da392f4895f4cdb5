//! A database that goes back in time under running processes.

use std::time::Duration;

use doorbuster::domain::Sale;
use doorbuster::process::Running;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use super::row_copy::RowCopy;
use super::{World, until};

/// A database that is copied and put back under running processes. A PostgreSQL database is replaced, as an
/// administrator would: its clients are cut off meanwhile, and their next connection finds the other state. In MariaDB
/// and SQLite the rows are replaced under the open connections.
pub struct Backup {
    server: String,
    name: String,
    /// `None` for PostgreSQL.
    rows: Option<RowCopy>,
}

impl Backup {
    pub fn of(world: &World) -> Self {
        let url = world.config().database.url;
        let (server, name) = url.rsplit_once('/').expect("a name");
        let rows = (!url.starts_with("postgres")).then(|| RowCopy::of(&url));
        Self { server: server.to_owned(), name: name.to_owned(), rows }
    }

    async fn in_database(&self, database: &str, statements: &[String]) {
        let url = format!("{}/{database}", self.server);
        let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
        for statement in statements {
            connection.execute(AssertSqlSafe(statement.as_str())).await.unwrap();
        }
        connection.close().await.unwrap();
    }

    /// Ends every connection and allows no new one.
    fn cut_off(&self) -> [String; 2] {
        let name = &self.name;
        [
            format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"),
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"),
        ]
    }

    pub async fn make(&self) {
        if let Some(rows) = &self.rows {
            return rows.make().await;
        }
        let (name, [closed, cut]) = (&self.name, self.cut_off());
        let copied = format!("CREATE DATABASE {name}_backup TEMPLATE {name}");
        let opened = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true");
        self.in_database("postgres", &[closed, cut, copied, opened]).await;
    }

    /// Runs a statement in the copy.
    pub async fn execute(&self, statement: &str) {
        if let Some(rows) = &self.rows {
            return rows.execute(statement).await;
        }
        self.in_database(&format!("{}_backup", self.name), &[statement.to_owned()]).await;
    }

    /// Runs a statement in the database itself.
    pub async fn execute_in_place(&self, statement: &str) {
        if let Some(rows) = &self.rows {
            return rows.execute_in_place(statement).await;
        }
        self.in_database(&self.name, &[statement.to_owned()]).await;
    }

    pub async fn restore(&self) {
        if let Some(rows) = &self.rows {
            return rows.restore().await;
        }
        let (name, [closed, cut]) = (&self.name, self.cut_off());
        let restored = format!("CREATE DATABASE {name} TEMPLATE {name}_backup");
        self.in_database("postgres", &[closed, cut, format!("DROP DATABASE {name}"), restored]).await;
    }
}

/// Waits until the order log has every change and the gate knows the database's place.
pub async fn everything_is_witnessed(running: &Running, sale: &Sale) {
    let (gate, store) = (&running.parts.gate, &running.parts.store);
    until("gate and log have witnessed everything", Duration::from_secs(60), async || {
        let logged = store.unlogged(1).await.ok()?.ids.is_empty();
        let place = store.places_of(std::slice::from_ref(&sale.id)).await.ok()?.remove(&sale.id)?;
        let witnessed = gate.describe(&sale.id).await.ok()??.place;
        (logged && place == witnessed).then_some(())
    })
    .await;
}
