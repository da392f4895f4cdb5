//! Creating or upgrading the tables, declaring the queues, and making one installation of the three servers.

use super::config::{Config, redact};
use super::parts::StartError;
use crate::gate::Gate;
use crate::link::{BROKER, DATABASE, InstallationId, REDIS};
use crate::queue::{declare_topology, join_installation};
use crate::store::{Store, StoreError};

/// What [`migrate`] has done.
#[derive(Debug)]
pub struct Migrated {
    /// The installation that the database now belongs to.
    pub installation: InstallationId,
    /// Why exchanges and queues could not be declared, if they could not. The first process that may then declares them.
    pub undeclared: Option<String>,
    /// Servers that did not answer, with the reason: each gets the id when a process first uses it, if it is empty.
    pub unreached: Vec<String>,
}

/// Upgrades the tables, declares exchanges and queues, and gives each server the id of the installation. May be repeated.
///
/// The id is `given`, or the one that the database has, or a new one. A server of another installation keeps its id, and
/// then nothing was changed anywhere. A database that has no id, or another one, joins only the installation that is
/// `given`.
pub async fn migrate(config: &Config, given: Option<InstallationId>) -> Result<Migrated, StartError> {
    let database = |source: StoreError| StartError::Database { url: redact(&config.database.url), source };
    let store = Store::connect(&config.store()).await.map_err(database)?;
    let gate = Gate::open(config.gate())
        .map_err(|source| StartError::Redis { url: redact(&config.redis.url), source })?;
    let (mut unreached, mut undeclared) = (Vec::new(), None);
    let of_database = store.installation().await.map_err(database)?;
    let of_redis = gate.installation().await.unwrap_or_else(|error| {
        unreached.push(error.to_string());
        None
    });
    let known = given.or(of_database);
    if let (None, Some(id)) = (known, of_redis) {
        return Err(StartError::NewDatabase { server: REDIS, id });
    }
    let ours = known.unwrap_or_else(InstallationId::generate);
    config.installation.meet(if given.is_some() { "this command" } else { DATABASE }, ours)?;
    if let Some(theirs) = of_redis {
        config.installation.meet(REDIS, theirs)?;
    }
    // The broker shows its id only to a declaration, so it comes before the first change of the others.
    match join_installation(&config.queue(), ours).await {
        Ok(Ok(())) => {
            undeclared = declare_topology(&config.queue()).await.err().map(|error| error.to_string());
        }
        Ok(Err(other)) if known.is_none() => {
            return Err(StartError::NewDatabase { server: BROKER, id: other.theirs });
        }
        Ok(Err(other)) => return Err(other.into()),
        Err(error) => unreached.push(format!("the broker: {error}")),
    }
    store.create_tables().await.map_err(database)?;
    store.join_installation(ours).await.map_err(database)?;
    // Without an answer before, there is none now.
    if unreached.iter().all(|why| why.starts_with("the broker")) {
        gate.join_installation(ours)
            .await
            .map_err(|source| StartError::Redis { url: redact(&config.redis.url), source })?;
    }
    store.close().await;
    Ok(Migrated { installation: ours, undeclared, unreached })
}
