//! Opening the gate: the connection and the task that batches attempts.

use std::sync::Arc;

use super::batcher::{self, Handle};
use super::core::{Gate, GateSettings};
use super::error::GateError;
use super::scripts::Scripts;
use crate::link::RedisLink;

impl Gate {
    /// Returns at once, without waiting for Redis. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`GateError::Broken`] if the Redis URL cannot be parsed.
    pub fn open(settings: GateSettings) -> Result<Self, GateError> {
        let link = RedisLink::open(&settings.redis)?;
        let (batcher, inbox) = Handle::new(settings.backlog);
        let gate = Self {
            link,
            scripts: Arc::new(Scripts::new(&settings.prefix)),
            settings: Arc::new(settings),
            observed: Arc::default(),
            restart: Arc::default(),
            clock: Arc::default(),
            batcher,
            readers: Arc::default(),
        };
        // The batching task must not hold a real handle, or its inbox would never close.
        let deciding = Self { batcher: Handle::new(1).0, ..gate.clone() };
        batcher::spawn(inbox, gate.settings.batch, move |sale, attempts| {
            let gate = deciding.clone();
            async move { gate.admit_all(&sale, &attempts).await }
        });
        Ok(gate)
    }
}
