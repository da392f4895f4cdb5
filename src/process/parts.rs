//! Handles to the servers, and what keeps a process from starting.

use std::time::Duration;

use super::config::{Config, redact};
use crate::gate::{Gate, GateError};
use crate::lease::{LeaseError, Leases};
use crate::queue::{DeadLetters, Publisher};
use crate::store::{Store, StoreError};

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("redis ({url}): {source}")]
    Redis { url: String, source: GateError },
    #[error("the database ({url}): {source}")]
    Database { url: String, source: StoreError },
    #[error("{what} cannot listen on {address}: {source}")]
    Listen { what: &'static str, address: String, source: std::io::Error },
    #[error("the broker could not be used within {within:?}; the log says why")]
    Broker { within: Duration },
    #[error("a server is set up so that orders could be lost:\n  {}", .0.join("\n  "))]
    Promises(Vec<String>),
}

/// Handles to the servers. None of them has been waited for.
#[derive(Clone)]
pub struct Parts {
    pub gate: Gate,
    pub leases: Leases,
    pub store: Store,
    /// Only a front publishes orders.
    pub publisher: Option<Publisher>,
    /// `None` before a process has started.
    pub letters: Option<DeadLetters>,
}

impl Parts {
    pub async fn open(config: &Config) -> Result<Self, StartError> {
        let redis = |source| StartError::Redis { url: redact(&config.redis.url), source };
        Ok(Self {
            gate: Gate::open(config.gate()).map_err(redis)?,
            leases: Leases::open(&config.redis(), &config.redis.prefix).map_err(|error| {
                redis(match error {
                    LeaseError::Redis(fault) => fault.into(),
                    other => GateError::Broken(other.to_string()),
                })
            })?,
            store: Store::connect(&config.store())
                .await
                .map_err(|source| StartError::Database { url: redact(&config.database.url), source })?,
            publisher: None,
            letters: None,
        })
    }

    /// Refuses settings that break a promise. A server that is away cannot be asked: it is asked
    /// again when it comes back.
    pub(super) async fn check_promises(&self, config: &Config) -> Result<(), StartError> {
        let mut wrong = Vec::new();
        if config.redis.check_settings
            && let Ok(Some(redis)) = self.gate.broken_promises().await
        {
            wrong.extend(redis);
        }
        if let Ok(database) = self.store.broken_promises().await {
            wrong.extend(database);
        }
        if wrong.is_empty() { Ok(()) } else { Err(StartError::Promises(wrong)) }
    }
}
