//! The ids of all sales, held in memory. Anyone may ask for any id, and however many ask for sales that do not exist,
//! that must cost Redis and the database no more than a few readings a second.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::SaleId;
use crate::gate::{Gate, GateError};
use crate::store::{Store, StoreError};

/// Minimum time for which an error is cached.
pub(super) const ERROR_AGE: Duration = Duration::from_millis(100);

/// Minimum time between two readings of all ids, or of one draft.
pub(super) const APART: Duration = Duration::from_millis(50);

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

/// A reading of all ids: when it began, and how it ended.
type Reading = (Instant, Result<(), SaleUnknown>);

/// The ids of a process; cheap to clone.
#[derive(Clone)]
pub(super) struct KnownSales {
    gate: Gate,
    store: Store,
    ids: Arc<RwLock<HashSet<SaleId>>>,
    /// The last reading. One request reads, the others wait for its result.
    last: Arc<tokio::sync::Mutex<Option<Reading>>>,
}

impl KnownSales {
    pub(super) fn new(gate: Gate, store: Store) -> Self {
        Self { gate, store, ids: Arc::default(), last: Arc::default() }
    }

    /// Whether there is a sale with this id. One that was ever found is known for good. Otherwise the answer is of a
    /// reading that began after this call, and all who wait share it. Fails if neither server that answers has the sale,
    /// and one does not answer.
    pub(super) async fn has(&self, id: &SaleId) -> Result<bool, SaleUnknown> {
        if self.is_known(id) {
            return Ok(true);
        }
        let asked = Instant::now();
        let mut last = self.last.clone().lock_owned().await;
        if self.is_known(id) {
            return Ok(true);
        }
        if let Some((began, read)) = &*last {
            if *began >= asked || (read.is_err() && began.elapsed() < ERROR_AGE) {
                return read.clone().map(|()| false);
            }
            tokio::time::sleep_until(*began + APART).await;
        }
        let (known, wanted) = (self.clone(), id.clone());
        // Of its own, because a client that hangs up must not let the next one read at once.
        let reading = tokio::spawn(async move {
            let began = Instant::now();
            let read = known.read(&wanted).await;
            // One that found its sale in the gate has not looked for the sales of the others.
            if !matches!(read, Ok(false)) {
                *last = Some((began, read.clone().map(|_| ())));
            }
            read.map(|_| ())
        });
        let read = reading.await.unwrap_or_else(|_| Err(GateError::Unavailable("stopping".into()).into()));
        if self.is_known(id) { Ok(true) } else { read.map(|()| false) }
    }

    /// Whether all ids were read: not if the gate has the sale that is wanted.
    async fn read(&self, wanted: &SaleId) -> Result<bool, SaleUnknown> {
        // A sale that the gate has does not wait for the database, which may be away.
        let loaded = self.gate.sales().await;
        self.add(loaded.as_deref().unwrap_or_default());
        if self.is_known(wanted) {
            return Ok(false);
        }
        let rows = self.rows().await;
        self.add(rows.as_deref().unwrap_or_default());
        loaded?;
        rows?;
        Ok(true)
    }

    fn is_known(&self, id: &SaleId) -> bool {
        self.ids.read().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    fn add(&self, found: &[SaleId]) {
        let mut ids = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        for id in found {
            // Most are known, and a clone allocates.
            if !ids.contains(id) {
                ids.insert(id.clone());
            }
        }
    }

    async fn rows(&self) -> Result<Vec<SaleId>, StoreError> {
        let ids = self.store.sale_ids().await?;
        // One that has lost commits may have lost a sale.
        self.store.ensure_current().await?;
        Ok(ids)
    }
}
