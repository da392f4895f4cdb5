//! A database that goes back in time under running processes.

use std::time::Duration;

use super::dump::Dump;
use super::sqlite_copy::SqliteCopy;
use super::template::Template;
use super::{World, until};
use doorbuster::domain::Sale;
use doorbuster::process::Running;

/// A database that is copied and put back under running processes.
pub enum Backup {
    /// A PostgreSQL database that is replaced, as by an administrator who allows nobody in meanwhile: its clients are cut
    /// off, and their next connection finds the other state.
    Replaced(Template),
    /// PostgreSQL or MariaDB: a dump is loaded, and no connection is cut.
    Dump(Dump),
    /// SQLite: the rows are replaced, and no connection is cut.
    Rows(SqliteCopy),
}

impl Backup {
    pub fn of(world: &World) -> Self {
        let url = world.config().database.url;
        if url.starts_with("sqlite") {
            Self::Rows(SqliteCopy::of(&url))
        } else if url.starts_with("postgres") {
            Self::Replaced(Template::of(&url))
        } else {
            Self::Dump(Dump::of(&url))
        }
    }

    /// Also of PostgreSQL a dump.
    pub fn as_dump_of(world: &World) -> Self {
        Self::Dump(Dump::of(&world.config().database.url))
    }

    pub async fn make(&self) {
        match self {
            Self::Replaced(database) => database.make().await,
            Self::Dump(database) => database.make().await,
            Self::Rows(database) => database.make().await,
        }
    }

    /// Runs a statement in the copy.
    pub async fn execute(&self, statement: &str) {
        match self {
            Self::Replaced(database) => database.execute(statement).await,
            Self::Dump(database) => database.execute(statement).await,
            Self::Rows(database) => database.execute(statement).await,
        }
    }

    /// Runs a statement in the database itself.
    pub async fn execute_in_place(&self, statement: &str) {
        match self {
            Self::Replaced(database) => database.execute_in_place(statement).await,
            Self::Dump(database) => database.execute_in_place(statement).await,
            Self::Rows(database) => database.execute_in_place(statement).await,
        }
    }

    pub async fn restore(&self) {
        match self {
            Self::Replaced(database) => database.restore().await,
            Self::Dump(database) => database.restore().await,
            Self::Rows(database) => database.restore().await,
        }
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
