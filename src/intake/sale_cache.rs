//! Descriptions of sales, cached for a moment, so that the checks on a request need no call each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{SaleId, SaleState};
use crate::gate::{Gate, GateError, GateSale};
use crate::store::{SaleRow, Store, StoreError};

/// Maximum sales in the cache. Anyone may request any id, so the cache needs a bound.
const MOST: usize = 10_000;
/// Minimum time for which an error is cached.
const ERROR_AGE: Duration = Duration::from_millis(100);

/// Where a sale is, and its description there.
#[derive(Debug, Clone)]
pub enum KnownSale {
    /// In the gate.
    Loaded(Arc<GateSale>),
    /// Closed for good, and no longer in the gate.
    Ended(Arc<SaleRow>),
    /// In the database as a draft; nobody has opened it.
    NotOpened(Arc<SaleRow>),
    /// Opened according to the database and missing in the gate: Redis lost it.
    Lost,
    /// Neither the gate nor the database has a sale with this id.
    Missing,
}

/// The sale could not be read, because the gate or the database did not answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SaleUnknown {
    /// The gate could not be read.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The database could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Default)]
struct Entry {
    known: RwLock<Option<(Instant, Result<KnownSale, SaleUnknown>)>>,
    /// One request reads, the others wait for its result.
    reading: tokio::sync::Mutex<()>,
}

impl Entry {
    fn fresh(&self, age: Duration) -> Option<Result<KnownSale, SaleUnknown>> {
        let known = self.known.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let age_of = |known: &Result<_, _>| if known.is_ok() { age } else { age.max(ERROR_AGE) };
        known.as_ref().filter(|(at, known)| at.elapsed() < age_of(known)).map(|(_, known)| known.clone())
    }
}

/// The cache of a process; cheap to clone.
#[derive(Clone)]
pub struct SaleCache {
    gate: Gate,
    store: Store,
    age: Duration,
    entries: Arc<Mutex<HashMap<SaleId, Arc<Entry>>>>,
}

impl SaleCache {
    pub(super) fn new(gate: Gate, store: Store, age: Duration) -> Self {
        Self { gate, store, age, entries: Arc::default() }
    }

    /// The description of a sale, at most `sale_cache` old. Read from the gate; from the database only if the gate
    /// does not know the sale.
    pub async fn get(&self, id: &SaleId) -> Result<KnownSale, SaleUnknown> {
        let entry = self.entry(id);
        if let Some(known) = entry.fresh(self.age) {
            return known;
        }
        Box::pin(self.read_once(id, &entry)).await
    }

    async fn read_once(&self, id: &SaleId, entry: &Entry) -> Result<KnownSale, SaleUnknown> {
        let _one = entry.reading.lock().await;
        if let Some(known) = entry.fresh(self.age) {
            return known;
        }
        // Errors are cached too. Otherwise all waiting requests would retry in turn, each until its timeout.
        let known = read_sale(&self.gate, &self.store, id).await;
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
}

/// The description of a sale now. Read from the gate; from the database only if the gate does not know the sale.
pub(super) async fn read_sale(gate: &Gate, store: &Store, id: &SaleId) -> Result<KnownSale, SaleUnknown> {
    if let Some(sale) = gate.describe(id).await? {
        return Ok(KnownSale::Loaded(Arc::new(sale)));
    }
    Ok(match store.sale(id).await? {
        None => {
            // One that has lost commits may have lost the sale.
            store.ensure_current().await?;
            KnownSale::Missing
        }
        Some(row) if row.state == SaleState::Draft => KnownSale::NotOpened(Arc::new(row)),
        Some(row) if row.state.has_ended() => KnownSale::Ended(Arc::new(row)),
        Some(_) => KnownSale::Lost,
    })
}
