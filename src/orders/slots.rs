//! Bounds how many changes of one sale a front has under way on request.
//!
//! A change that waits here has asked nothing of any server yet. Without a bound, changes wait between their steps as well
//! once the database is asked for more than it can do: most of them give up after half of their work, and begin again. And
//! each transaction of a sale holds a connection while it waits for the sale's place: without a bound of their own, the
//! transactions of a sale whose rows are locked would take every connection, and nobody could pay or cancel in another sale.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::SaleId;
use crate::store::READERS;

/// How long a change waits for its turn.
const CHANGE_WITHIN: Duration = Duration::from_secs(5);

/// How long its transaction waits; less than the lease under which it is made lasts.
const TRANSACTION_WITHIN: Duration = Duration::from_secs(2);

/// Changes of a sale for each connection: a change spends about half of its time on its lease and on the order log.
const CHANGES: usize = 2;

/// Other sales have this many connections at least.
const OTHERS: u32 = 1;

/// Nothing was done: as many changes of this sale as may be under way wait for the database.
#[derive(Debug, thiserror::Error)]
#[error("too many changes of this sale wait for the database (database.connections); try again")]
pub struct Crowded;

/// The sales of which something is under way or waits.
type Sales = Mutex<HashMap<SaleId, Arc<Semaphore>>>;

/// The turns in each sale. Clones share them.
#[derive(Clone)]
pub(super) struct Slots {
    of_each_sale: usize,
    within: Duration,
    sales: Arc<Sales>,
}

/// A turn, until it is dropped.
pub(super) struct Slot {
    /// `None` only while it is dropped.
    permit: Option<OwnedSemaphorePermit>,
    sale: SaleId,
    sales: Arc<Sales>,
}

impl Slots {
    fn new(of_each_sale: usize, within: Duration) -> Self {
        Self { of_each_sale, within, sales: Arc::default() }
    }

    /// For the changes of a front whose pool has so many connections.
    pub(super) fn for_changes(connections: u32) -> Self {
        Self::new(connections as usize * CHANGES, CHANGE_WITHIN)
    }

    /// For their transactions. A sale gets all connections but those for readers and one for other sales, and at least one.
    pub(super) fn for_transactions(connections: u32) -> Self {
        Self::new(connections.saturating_sub(READERS + OTHERS).max(1) as usize, TRANSACTION_WITHIN)
    }

    /// Waits for a turn in this sale, in the order of arrival; [`Crowded`] if that takes too long.
    pub(super) async fn take(&self, sale: &SaleId) -> Result<Slot, Crowded> {
        let of_sale = {
            let mut sales = lock(&self.sales);
            let of_sale = sales.entry(sale.clone());
            of_sale.or_insert_with(|| Arc::new(Semaphore::new(self.of_each_sale))).clone()
        };
        // Made first, so that a caller who gives up leaves nothing behind either.
        let mut slot = Slot { permit: None, sale: sale.clone(), sales: self.sales.clone() };
        match tokio::time::timeout(self.within, of_sale.acquire_owned()).await {
            Ok(Ok(permit)) => {
                slot.permit = Some(permit);
                Ok(slot)
            }
            Ok(Err(_)) | Err(_) => {
                metrics::counter!("changes_turned_away_total").increment(1);
                Err(Crowded)
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut sales = lock(&self.sales);
        drop(self.permit.take());
        // Each permit and each caller who waits has a handle of their own.
        if sales.get(&self.sale).is_some_and(|of_sale| Arc::strong_count(of_sale) == 1) {
            sales.remove(&self.sale);
        }
    }
}

fn lock(sales: &Sales) -> MutexGuard<'_, HashMap<SaleId, Arc<Semaphore>>> {
    sales.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sale(id: &str) -> SaleId {
        SaleId::parse(id).expect("an id")
    }

    const SHORT: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn a_sale_has_its_own_slots_and_leaves_nothing_behind() {
        let slots = Slots { within: SHORT, ..Slots::for_transactions(8) };
        let mut taken = Vec::new();
        for _ in 0..5 {
            taken.push(slots.take(&sale("shoes")).await.expect("a slot"));
        }
        assert!(matches!(slots.take(&sale("shoes")).await, Err(Crowded)));
        let other = slots.take(&sale("coats")).await.expect("another sale's");
        let patient = Slots { within: CHANGE_WITHIN, ..slots.clone() };
        let shoes = sale("shoes");
        let (waits, ()) = tokio::join!(patient.take(&shoes), async {
            tokio::time::sleep(SHORT).await;
            drop(taken.pop());
        });
        drop((waits.expect("its turn"), other, taken));
        assert!(lock(&slots.sales).is_empty(), "no sale is left");
        assert!(slots.take(&sale("shoes")).await.is_ok());
    }

    #[tokio::test]
    async fn a_caller_who_leaves_while_waiting_leaves_nothing_behind() {
        let slots = Slots::for_transactions(1);
        let taken = slots.take(&sale("shoes")).await.expect("a slot");
        assert!(tokio::time::timeout(SHORT, slots.take(&sale("shoes"))).await.is_err());
        drop(taken);
        assert!(lock(&slots.sales).is_empty());
    }
}
