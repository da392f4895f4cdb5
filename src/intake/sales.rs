//! What this process knows of each sale, for a moment: checks on a request need no call each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{SaleId, SaleState};
use crate::gate::{Gate, GateError, GateSale};
use crate::store::{SaleRow, Store, StoreError};

/// Sales remembered at once. Anyone may ask for any id, so the memory has a bound.
const MOST: usize = 10_000;
/// How long trouble with asking is remembered, at least.
const TROUBLE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub enum KnownSale {
    Loaded(Arc<GateSale>),
    /// Closed for good, and no longer in the gate.
    Ended(Arc<SaleRow>),
    /// In the database as a draft; nobody has opened it.
    NotOpened(Arc<SaleRow>),
    /// The database says that it was opened, and the gate does not know it: Redis lost it.
    Lost,
    Missing,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum SalesError {
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Default)]
struct Entry {
    known: RwLock<Option<(Instant, Result<KnownSale, SalesError>)>>,
    /// One request asks, the others wait for its answer.
    asking: tokio::sync::Mutex<()>,
}

impl Entry {
    fn fresh(&self, age: Duration) -> Option<Result<KnownSale, SalesError>> {
        let known = self.known.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let age_of = |known: &Result<_, _>| if known.is_ok() { age } else { age.max(TROUBLE) };
        known.as_ref().filter(|(at, known)| at.elapsed() < age_of(known)).map(|(_, known)| known.clone())
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Sales {
    gate: Gate,
    store: Store,
    age: Duration,
    entries: Arc<Mutex<HashMap<SaleId, Arc<Entry>>>>,
}

impl Sales {
    pub(super) fn new(gate: Gate, store: Store, age: Duration) -> Self {
        Self { gate, store, age, entries: Arc::default() }
    }

    /// What is known of a sale, at most `sale_cache` old. The gate is asked first, and the
    /// database only about what the gate does not know.
    pub async fn get(&self, id: &SaleId) -> Result<KnownSale, SalesError> {
        let entry = self.entry(id);
        if let Some(known) = entry.fresh(self.age) {
            return known;
        }
        Box::pin(self.ask_once(id, &entry)).await
    }

    async fn ask_once(&self, id: &SaleId, entry: &Entry) -> Result<KnownSale, SalesError> {
        let _one = entry.asking.lock().await;
        if let Some(known) = entry.fresh(self.age) {
            return known;
        }
        // Trouble is remembered too: else all who wait here would try in turn, each for as long.
        let known = self.ask(id).await;
        let mut slot = entry.known.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        *slot = Some((Instant::now(), known.clone()));
        known
    }

    fn entry(&self, id: &SaleId) -> Arc<Entry> {
        let mut entries = self.entries.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(entry) = entries.get(id) {
            return entry.clone();
        }
        if entries.len() >= MOST {
            entries.clear();
        }
        entries.entry(id.clone()).or_default().clone()
    }

    async fn ask(&self, id: &SaleId) -> Result<KnownSale, SalesError> {
        if let Some(sale) = self.gate.describe(id).await? {
            return Ok(KnownSale::Loaded(Arc::new(sale)));
        }
        Ok(match self.store.sale(id).await? {
            None => KnownSale::Missing,
            Some(row) if row.state == SaleState::Draft => KnownSale::NotOpened(Arc::new(row)),
            Some(row) if row.state.has_ended() => KnownSale::Ended(Arc::new(row)),
            Some(_) => KnownSale::Lost,
        })
    }
}
