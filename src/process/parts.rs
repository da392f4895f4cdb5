//! Handles to the servers, and the errors that keep a process from starting.

use std::time::Duration;

use super::config::{Config, redact};
use crate::gate::{Gate, GateError};
use crate::lease::{LeaseError, Leases};
use crate::queue::{DeadLetters, Publisher};
use crate::settlement::witnessed_places;
use crate::store::{Store, StoreError};

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
    /// `Some` in a started front: only fronts publish orders.
    pub publisher: Option<Publisher>,
    /// `Some` in a process that was started.
    pub dead_letters: Option<DeadLetters>,
}

impl Parts {
    /// Waits for no server; connections are made at first use.
    pub async fn open(config: &Config) -> Result<Self, StartError> {
        let redis = |source| StartError::Redis { url: redact(&config.redis.url), source };
        let gate = Gate::open(config.gate()).map_err(redis)?;
        let store = Store::connect(&config.store())
            .await
            .map_err(|source| StartError::Database { url: redact(&config.database.url), source })?;
        let witness = gate.clone();
        store.hear_witnesses_with(move || {
            let witness = witness.clone();
            Box::pin(async move {
                witnessed_places(&witness).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, "the gate was not asked for the places of the database");
                    Vec::new()
                })
            })
        });
        Ok(Self {
            gate,
            leases: Leases::open(&config.redis(), &config.redis.prefix).map_err(|error| {
                redis(match error {
                    LeaseError::Redis(fault) => fault.into(),
                    other => GateError::Broken(other.to_string()),
                })
            })?,
            store,
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
