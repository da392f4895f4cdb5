//! Reads order rows for many requests: those that wait at the same time share a query. Nothing is cached, because
//! the repeat of an order with a row must get the row's present status. Its queries have connections of their own: changes
//! may hold all the others, as when each waits for a locked row, and buyers who only ask how their order stands would wait
//! behind them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::domain::{OrderId, OrderStatus, SaleId};
use crate::link::work_together;
use crate::store::{OrderEvent, OrderRow, Payment, READERS, Store, StoreError};

/// Maximum ids in one query.
const TOGETHER: usize = 128;
/// Concurrent queries.
const QUERIES: usize = READERS as usize;
/// Maximum orders waiting for a query.
const WAITING: usize = 50_000;

/// What the database has of an order.
#[derive(Debug, Clone)]
pub(super) struct FoundRow {
    pub(super) row: OrderRow,
    /// Its changes, oldest first.
    pub(super) events: Vec<OrderEvent>,
    /// Its payments and refunds, oldest first, once it is paid or has ended.
    pub(super) payments: Vec<Payment>,
}

type Found = Result<Option<FoundRow>, StoreError>;

/// Who waits for each order whose reading has not begun.
type Waiting = Arc<Mutex<HashMap<OrderId, Vec<oneshot::Sender<Found>>>>>;

/// Hands lookups to the reading task. Cheap to clone; the task ends with the last handle.
#[derive(Clone)]
pub(super) struct RowReader {
    lookups: mpsc::Sender<OrderId>,
    waiting: Waiting,
    timeout: Duration,
}

impl RowReader {
    /// Must be called inside a tokio runtime.
    pub(super) fn spawn(store: Store) -> Self {
        let timeout = store.timeout();
        let (lookups, inbox) = mpsc::channel(WAITING);
        let waiting = Waiting::default();
        let asked = waiting.clone();
        let store = store.for_readers();
        tokio::spawn(work_together(inbox, TOGETHER, QUERIES, move |ids| {
            answer(store.clone(), asked.clone(), ids)
        }));
        Self { lookups, waiting, timeout }
    }

    /// The present row of an order, from a reading that begins after this call. The whole wait, in the
    /// queue and for the query, has the time limit of a query. An order is in the queue once, however many ask for it:
    /// one buyer who repeats the same click all the time cannot fill it.
    pub(super) async fn order(&self, id: OrderId) -> Found {
        let (answer, found) = oneshot::channel();
        self.enqueue(id, answer)?;
        match tokio::time::timeout(self.timeout, found).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => Err(StoreError::Away("the query was abandoned".into())),
            Err(_) => Err(StoreError::Away("no answer from the database in time".into())),
        }
    }

    fn enqueue(&self, id: OrderId, answer: oneshot::Sender<Found>) -> Result<(), StoreError> {
        let mut waiting = lock(&self.waiting);
        if let Some(answers) = waiting.get_mut(&id) {
            // While the database hangs, requests give up and come again, and their answers must not pile up.
            if answers.len().is_power_of_two() {
                answers.retain(|answer| !answer.is_closed());
            }
            answers.push(answer);
            return Ok(());
        }
        let full = |_| StoreError::Away("too many requests are waiting for the database".into());
        self.lookups.try_send(id).map_err(full)?;
        waiting.insert(id, vec![answer]);
        Ok(())
    }
}

fn lock(waiting: &Waiting) -> MutexGuard<'_, HashMap<OrderId, Vec<oneshot::Sender<Found>>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(store: Store, waiting: Waiting, ids: Vec<OrderId>) {
    let mut asked: HashMap<OrderId, Vec<oneshot::Sender<Found>>> = {
        let mut waiting = lock(&waiting);
        ids.into_iter().filter_map(|id| waiting.remove_entry(&id)).collect()
    };
    // Requests that gave up need no query.
    asked.retain(|_, answers| answers.iter().any(|answer| !answer.is_closed()));
    let ids: Vec<OrderId> = asked.keys().copied().collect();
    let rows = match read(&store, &ids).await {
        Ok(rows) => Ok(rows),
        // One unreadable row must not fail the other requests of the query.
        Err(StoreError::Broken(_)) if ids.len() > 1 => {
            for (id, answers) in asked {
                let one = read(&store, &[id]).await.map(|mut rows| rows.remove(&id));
                send(answers, &one);
            }
            return;
        }
        Err(error) => Err(error),
    };
    for (id, answers) in asked {
        send(answers, &rows.as_ref().map(|rows| rows.get(&id).cloned()).map_err(StoreError::clone));
    }
}

fn send(answers: Vec<oneshot::Sender<Found>>, found: &Found) {
    for answer in answers {
        let _ = answer.send(found.clone());
    }
}

async fn read(store: &Store, ids: &[OrderId]) -> Result<HashMap<OrderId, FoundRow>, StoreError> {
    let rows = store.orders_by_id(ids).await?;
    // Most orders have not changed since their row was written, so nothing more is read for them.
    let changed: Vec<OrderId> = rows.iter().filter(|row| row.has_history()).map(|row| row.order.id).collect();
    let is_over = |row: &&OrderRow| !matches!(row.status, OrderStatus::Accepted | OrderStatus::Confirmed);
    let over: Vec<OrderId> = rows.iter().filter(is_over).map(|row| row.order.id).collect();
    let mut events = store.histories(&changed).await?;
    let mut payments = store.payments_of(&over).await?;
    // After everything else: what was read is then no older than what is witnessed.
    let sales: BTreeSet<SaleId> = rows.iter().map(|row| row.order.sale.clone()).collect();
    store.ensure_current_in(&sales).await?;
    let found = rows.into_iter().map(|row| {
        let id = row.order.id;
        let events = events.remove(&id).unwrap_or_default();
        (id, FoundRow { row, events, payments: payments.remove(&id).unwrap_or_default() })
    });
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn repeats_of_one_order_take_one_place_in_the_queue() {
        let (lookups, mut inbox) = mpsc::channel(2);
        let reader = RowReader { lookups, waiting: Waiting::default(), timeout: Duration::from_millis(1) };
        let (one, other, third) = (OrderId::generate(), OrderId::generate(), OrderId::generate());
        let mut waiting = Vec::new();
        for _ in 0..1_000 {
            let (answer, found) = oneshot::channel();
            reader.enqueue(one, answer).expect("it shares the place of the first");
            waiting.push(found);
        }
        reader.enqueue(other, oneshot::channel().0).expect("there is room for another order");
        reader.enqueue(third, oneshot::channel().0).expect_err("the queue is full");
        assert_eq!(inbox.recv().await, Some(one));
        assert_eq!(lock(&reader.waiting).remove(&one).map(|answers| answers.len()), Some(1_000));
        // Its reading has begun, so what is asked now needs another.
        reader.enqueue(one, oneshot::channel().0).expect("there is room again");
        assert_eq!(inbox.recv().await, Some(other));
        assert_eq!(inbox.recv().await, Some(one));
        // They give up and ask again, as long as the database hangs.
        for _ in 0..1_000 {
            reader.enqueue(one, oneshot::channel().0).expect("it shares the place of the first");
        }
        assert!(lock(&reader.waiting)[&one].len() < 10);
    }
}
