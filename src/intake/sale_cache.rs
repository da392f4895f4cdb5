//! Descriptions of sales, cached for a moment, so that the checks on a request need no call each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use super::known_sales::{APART, ERROR_AGE, KnownSales, SaleUnknown};
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

/// What a reading found.
#[derive(Clone)]
struct Found {
    began: Instant,
    ended: Instant,
    known: Result<KnownSale, SaleUnknown>,
}

impl Found {
    /// Whether it answers a request that came at `asked`. It may be `age` old, except that a draft may have been opened since,
    /// and have orders already: that takes a reading that began later.
    fn answers(&self, asked: Instant, age: Duration) -> bool {
        match &self.known {
            Ok(KnownSale::Draft) => self.began >= asked,
            Ok(_) => self.ended.elapsed() < age,
            Err(_) => self.ended.elapsed() < age.max(ERROR_AGE),
        }
    }
}

#[derive(Default)]
struct Entry {
    found: RwLock<Option<Found>>,
    /// One request reads, the others wait for its result.
    reading: tokio::sync::Mutex<()>,
}

impl Entry {
    fn found(&self) -> Option<Found> {
        self.found.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answer(&self, asked: Instant, age: Duration) -> Option<Result<KnownSale, SaleUnknown>> {
        self.found().filter(|found| found.answers(asked, age)).map(|found| found.known)
    }
}

/// The cache of a process; cheap to clone.
#[derive(Clone)]
pub struct SaleCache {
    gate: Gate,
    store: Store,
    age: Duration,
    ids: KnownSales,
    entries: Arc<Mutex<HashMap<SaleId, Arc<Entry>>>>,
}

impl SaleCache {
    pub(super) fn new(gate: Gate, store: Store, age: Duration) -> Self {
        let ids = KnownSales::new(gate.clone(), store.clone());
        Self { gate, store, age, ids, entries: Arc::default() }
    }

    /// The description of a sale, at most `sale_cache` old. Read from the gate; from the database only if the gate
    /// does not know the sale.
    pub async fn get(&self, id: &SaleId) -> Result<KnownSale, SaleUnknown> {
        let asked = Instant::now();
        if let Some(known) = self.cached(id).and_then(|entry| entry.answer(asked, self.age)) {
            return known;
        }
        Box::pin(self.read_known(id, asked)).await
    }

    /// Whether there is no sale with this id. Asks no server about one that was ever found.
    pub async fn is_missing(&self, id: &SaleId) -> bool {
        matches!(self.ids.has(id).await, Ok(false))
    }

    /// Ids that nobody has given to a sale take no place in the cache.
    async fn read_known(&self, id: &SaleId, asked: Instant) -> Result<KnownSale, SaleUnknown> {
        if !self.ids.has(id).await? {
            return Ok(KnownSale::Missing);
        }
        self.read_once(id, &self.entry(id), asked).await
    }

    async fn read_once(&self, id: &SaleId, entry: &Entry, asked: Instant) -> Result<KnownSale, SaleUnknown> {
        let _one = entry.reading.lock().await;
        if let Some(known) = entry.answer(asked, self.age) {
            return known;
        }
        if let Some(Found { ended, known: Ok(KnownSale::Draft), .. }) = entry.found() {
            // However many ask for a draft, it is read only so often.
            tokio::time::sleep_until(ended + APART).await;
        }
        // Errors are cached too. Otherwise all waiting requests would retry in turn, each until its timeout.
        let began = Instant::now();
        let known = read_sale(&self.gate, &self.store, id).await;
        let found = Found { began, ended: Instant::now(), known: known.clone() };
        *entry.found.write().unwrap_or_else(PoisonError::into_inner) = Some(found);
        known
    }

    fn cached(&self, id: &SaleId) -> Option<Arc<Entry>> {
        self.entries().get(id).cloned()
    }

    fn entry(&self, id: &SaleId) -> Arc<Entry> {
        let mut entries = self.entries();
        if entries.len() >= MOST && !entries.contains_key(id) {
            // Requests for a hot sale keep its description fresh.
            let now = Instant::now();
            entries.retain(|_, entry| entry.answer(now, self.age).is_some());
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
