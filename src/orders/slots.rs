//! Bounds how many transactions of one sale a process has under way on request. Each of them needs the sale's place, one
//! after the other, and holds a connection while it waits for it. Without a bound, a sale whose rows are locked would take
//! every connection of the process, and nobody could pay or cancel in another sale.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::SaleId;
use crate::store::READERS;

/// How long a transaction waits for its turn; less than the lease under which it is made lasts.
const TURN_WITHIN: Duration = Duration::from_secs(2);

/// Other sales have this many connections at least.
const OTHERS: u32 = 1;

/// The transaction has not begun: as many of this sale as may be under way wait for the database.
#[derive(Debug, thiserror::Error)]
#[error("too many changes of this sale wait for the database (database.connections); try again")]
pub struct Crowded;

/// The sales with transactions that are under way or wait.
type Sales = Mutex<HashMap<SaleId, Arc<Semaphore>>>;

/// The transactions of each sale. Clones share them.
#[derive(Clone)]
pub(super) struct Slots {
    of_each_sale: usize,
    turn_within: Duration,
    sales: Arc<Sales>,
}

/// Permits one transaction, until it is dropped.
pub(super) struct Slot {
    /// `None` only while it is dropped.
    permit: Option<OwnedSemaphorePermit>,
    sale: SaleId,
    sales: Arc<Sales>,
}

impl Slots {
    /// For a pool with so many connections. A sale gets all but those for readers and one for other sales, and at least one.
    pub(super) fn for_connections(connections: u32) -> Self {
        let of_each_sale = connections.saturating_sub(READERS + OTHERS).max(1) as usize;
        Self { of_each_sale, turn_within: TURN_WITHIN, sales: Arc::default() }
    }

    /// Waits until a transaction of this sale may begin, in the order of arrival; [`Crowded`] if that takes too long.
    pub(super) async fn take(&self, sale: &SaleId) -> Result<Slot, Crowded> {
        let of_sale = {
            let mut sales = lock(&self.sales);
            let of_sale = sales.entry(sale.clone());
            of_sale.or_insert_with(|| Arc::new(Semaphore::new(self.of_each_sale))).clone()
        };
        // Made first, so that a caller who gives up leaves nothing behind either.
        let mut slot = Slot { permit: None, sale: sale.clone(), sales: self.sales.clone() };
        match tokio::time::timeout(self.turn_within, of_sale.acquire_owned()).await {
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

    fn slots(connections: u32, turn_within: Duration) -> Slots {
        Slots { turn_within, ..Slots::for_connections(connections) }
    }

    #[tokio::test]
    async fn a_sale_has_its_own_slots_and_leaves_nothing_behind() {
        let slots = slots(8, SHORT);
        let mut taken = Vec::new();
        for _ in 0..5 {
            taken.push(slots.take(&sale("shoes")).await.expect("a slot"));
        }
        assert!(matches!(slots.take(&sale("shoes")).await, Err(Crowded)));
        let other = slots.take(&sale("coats")).await.expect("another sale's");
        let patient = Slots { turn_within: TURN_WITHIN, ..slots.clone() };
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
        let slots = slots(1, TURN_WITHIN);
        let taken = slots.take(&sale("shoes")).await.expect("a slot");
        assert!(tokio::time::timeout(SHORT, slots.take(&sale("shoes"))).await.is_err());
        drop(taken);
        assert!(lock(&slots.sales).is_empty());
    }
}
