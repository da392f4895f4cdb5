//! Handles to the servers, and the errors that keep a process from starting.

use std::time::Duration;

use super::config::{Config, redact};
use crate::gate::{Gate, GateError};
use crate::lease::{LeaseError, Leases};
use crate::link::{DATABASE, Installation, InstallationId, OtherInstallation, REDIS};
use crate::maintenance::Comparison;
use crate::queue::{DeadLetters, Publisher, QueueSettings};
use crate::settlement::witnessed_places;
use crate::store::{NotHeard, Store, StoreError};
use crate::telemetry::SaleGauges;

/// How long a process waits at its start for the servers to show their installation.
const RECOGNISED_WITHIN: Duration = Duration::from_secs(2);

/// Why a process cannot start, or a command cannot reach its servers. Waiting would not help.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Redis cannot be used as configured.
    #[error("redis ({url}): {source}")]
    Redis {
        /// The URL without its password.
        url: String,
        /// Why.
        source: GateError,
    },
    /// The database cannot be used as configured.
    #[error("the database ({url}): {source}")]
    Database {
        /// The URL without its password.
        url: String,
        /// Why.
        source: StoreError,
    },
    /// An address is taken, or does not belong to this host.
    #[error("{what} cannot listen on {address}: {source}")]
    Listen {
        /// The configuration section of the listener.
        what: &'static str,
        /// The address as configured.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The broker did not answer in time.
    #[error("the broker could not be used within {within:?}; the log says why")]
    Broker {
        /// How long the process waited for it.
        within: Duration,
    },
    /// Redis and the database belong to different installations.
    #[error(transparent)]
    OtherInstallation(#[from] OtherInstallation),
    /// A server belongs to an installation, and the database is new or from before installations had ids.
    #[error(
        "{server} belongs to installation {id}, but the database to none; if it replaces that installation's database, \
         run `doorbuster migrate --installation {id}`, otherwise correct redis.url and queue.url, or choose other prefixes"
    )]
    NewDatabase {
        /// The other server.
        server: &'static str,
        /// Its installation.
        id: InstallationId,
    },
    /// Server settings that can lose orders, each with its fix.
    #[error("a server is set up so that orders could be lost:\n  {}", .0.join("\n  "))]
    Settings(Vec<String>),
}

/// Handles to the servers, cheap to clone.
#[derive(Clone)]
pub struct Parts {
    /// Decides who gets a unit, in Redis.
    pub gate: Gate,
    /// The leases, in the same Redis.
    pub leases: Leases,
    /// The database.
    pub store: Store,
    /// What monitoring is shown of each sale.
    pub sale_gauges: SaleGauges,
    /// `Some` in a started front: only fronts publish orders.
    pub publisher: Option<Publisher>,
    /// `Some` in a process that was started.
    pub dead_letters: Option<DeadLetters>,
}

impl Parts {
    /// Fails if Redis and the database belong to different installations. Does not wait for one that is away: it is
    /// checked when it is first used, as the broker always is.
    pub async fn open(config: &Config) -> Result<Self, StartError> {
        config.installation.check();
        let redis = |source| StartError::Redis { url: redact(&config.redis.url), source };
        let gate = Gate::open(config.gate()).map_err(redis)?;
        let store = Store::connect(&config.store())
            .await
            .map_err(|source| StartError::Database { url: redact(&config.database.url), source })?;
        same_installation(&gate, &store, &config.installation).await?;
        let leases = Leases::open(&config.redis(), &config.redis.prefix).map_err(|error| {
            redis(match error {
                LeaseError::Redis(fault) => fault.into(),
                other => GateError::Broken(other.to_string()),
            })
        })?;
        compare_restarts(&gate, &store.ahead_of_buyers(1), &leases, config.queue());
        hear_witnesses(&gate, &store, &leases, config.queue());
        Ok(Self {
            gate,
            leases,
            store,
            sale_gauges: SaleGauges::default(),
            publisher: None,
            dead_letters: None,
        })
    }

    /// Refuses server settings that break a promise. A server that is away is not checked here; Redis is checked
    /// when it comes back.
    pub(super) async fn check_settings(&self, config: &Config) -> Result<(), StartError> {
        let mut wrong = Vec::new();
        if config.redis.check_settings
            && let Ok(Some(redis)) = self.gate.wrong_settings().await
        {
            wrong.extend(redis);
        }
        if let Ok(database) = self.store.wrong_settings().await {
            wrong.extend(database);
        }
        if wrong.is_empty() { Ok(()) } else { Err(StartError::Settings(wrong)) }
    }
}

/// Has whichever process needs a restarted Redis first compare its books.
fn compare_restarts(gate: &Gate, store: &Store, leases: &Leases, queue: QueueSettings) {
    let (store, leases) = (store.clone(), leases.clone());
    gate.compare_restarts_with(move |gate| {
        let (store, leases) = (store.clone(), leases.clone());
        Box::pin(Comparison { gate, store, leases, queue: queue.clone() }.run())
    });
}

/// How long to wait for Redis, which witnesses the database's places; less than the time limit of a transaction, which
/// may have to wait for it.
const HEAR_WITHIN: Duration = Duration::from_secs(2);

/// Has the store hear what Redis has witnessed, once a restarted Redis was compared: one that was emptied has witnessed
/// nothing. While Redis is away, the store relies on what this process knows, and commits nothing if it has just started.
fn hear_witnesses(gate: &Gate, store: &Store, leases: &Leases, queue: QueueSettings) {
    // Neither the gate itself, whose comparison holds the store, nor the store: they would hold each other for ever.
    let witness = gate.for_reading();
    compare_restarts(&witness, &store.apart(), leases, queue);
    store.hear_witnesses_with(move || {
        let witness = witness.clone();
        Box::pin(async move {
            match tokio::time::timeout(HEAR_WITHIN, witness.is_compared()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => {
                    // It may take longer than the caller waits, and must not begin again for the next one.
                    let comparing = witness.clone();
                    let comparing = tokio::spawn(async move { comparing.ensure_compared().await });
                    match comparing.await {
                        Ok(compared) => compared.map_err(|error| NotHeard(error.to_string()))?,
                        Err(ended) => return Err(NotHeard(ended.to_string())),
                    }
                }
                Ok(Err(_)) | Err(_) => return Ok(None),
            }
            let heard = tokio::time::timeout(HEAR_WITHIN, witnessed_places(&witness)).await;
            Ok(match heard {
                Ok(Ok(places)) => Some(places),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "the gate was not asked for the places of the database");
                    None
                }
                Err(_) => None,
            })
        })
    });
}

/// Fails if Redis and the database show that they belong to different installations. One that does not answer in time
/// shows nothing.
async fn same_installation(
    gate: &Gate,
    store: &Store,
    installation: &Installation,
) -> Result<(), StartError> {
    let (redis, database) = tokio::join!(
        tokio::time::timeout(RECOGNISED_WITHIN, gate.installation()),
        tokio::time::timeout(RECOGNISED_WITHIN, store.installation()),
    );
    let redis = redis.ok().and_then(Result::ok).flatten();
    let database = database.ok().and_then(Result::ok);
    if let (Some(id), Some(None)) = (redis, database) {
        return Err(StartError::NewDatabase { server: REDIS, id });
    }
    for (server, id) in [(DATABASE, database.flatten()), (REDIS, redis)] {
        if let Some(id) = id {
            installation.meet(server, id)?;
        }
    }
    Ok(())
}
