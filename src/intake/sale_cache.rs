//! Descriptions of sales, cached for a moment, so that the checks on a request need no call each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use super::known_sales::{ERROR_AGE, KnownSales, SaleUnknown};
use crate::domain::{SaleId, SaleState};
use crate::gate::{Gate, GateSale};
use crate::store::{SaleRow, Store};

/// Maximum descriptions in the cache. A description that is not fresh makes room for another.
const MOST: usize = 10_000;
/// Where a sale is, and its description there.
#[derive(Debug, Clone)]
pub enum KnownSale {
    /// In the gate.
    Loaded(Arc<GateSale>),
    /// Closed for good, and no longer in the gate.
    Ended(Arc<SaleRow>),
    /// A draft. Only operators may know that there is such a sale, until it is opened.
    Draft,
    /// Opened according to the database and missing in the gate: Redis lost it.
    Lost,
    /// Neither the gate nor the database has a sale with this id.
    Missing,
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
    ids: Arc<KnownSales>,
    entries: Arc<Mutex<HashMap<SaleId, Arc<Entry>>>>,
}

impl SaleCache {
    pub(super) fn new(gate: Gate, store: Store, age: Duration) -> Self {
        let ids = Arc::new(KnownSales::new(gate.clone(), store.clone()));
        Self { gate, store, age, ids, entries: Arc::default() }
    }

    /// The description of a sale, at most `sale_cache` old. Read from the gate; from the database only if the gate
    /// does not know the sale.
    pub async fn get(&self, id: &SaleId) -> Result<KnownSale, SaleUnknown> {
        if let Some(known) = self.cached(id).and_then(|entry| entry.fresh(self.age)) {
            return known;
        }
        Box::pin(self.read_known(id)).await
    }

    /// Ids that nobody has given to a sale take no place in the cache.
    async fn read_known(&self, id: &SaleId) -> Result<KnownSale, SaleUnknown> {
        if !self.ids.has(id).await? {
            return Ok(KnownSale::Missing);
        }
        self.read_once(id, &self.entry(id)).await
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

    fn cached(&self, id: &SaleId) -> Option<Arc<Entry>> {
        self.entries().get(id).cloned()
    }

    fn entry(&self, id: &SaleId) -> Arc<Entry> {
        let mut entries = self.entries();
        if entries.len() >= MOST && !entries.contains_key(id) {
            // Requests for a hot sale keep its description fresh.
            entries.retain(|_, entry| entry.fresh(self.age).is_some());
        }
        if entries.len() >= MOST {
            return entries.get(id).cloned().unwrap_or_default();
        }
        entries.entry(id.clone()).or_default().clone()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<SaleId, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The description of a sale now. Read from the gate; from the database only if the gate does not know the sale.
pub(super) async fn read_sale(gate: &Gate, store: &Store, id: &SaleId) -> Result<KnownSale, SaleUnknown> {
    if let Some(sale) = gate.describe(id).await? {
        let is_draft = sale.state == SaleState::Draft;
        return Ok(if is_draft { KnownSale::Draft } else { KnownSale::Loaded(Arc::new(sale)) });
    }
    let row = store.sale(id).await?;
    if row.as_ref().is_none_or(|row| row.state == SaleState::Draft) {
        // A database that has lost commits may have lost the sale, or its opening.
        store.ensure_current().await?;
    }
    Ok(match row {
        None => KnownSale::Missing,
        Some(row) if row.state == SaleState::Draft => KnownSale::Draft,
        Some(row) if row.state.has_ended() => KnownSale::Ended(Arc::new(row)),
        Some(_) => KnownSale::Lost,
    })
}
