//! Reads order rows for many requests: those that wait at the same time share a query. Nothing is cached, because
//! the repeat of an order with a row must get the row's present status.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::domain::OrderId;
use crate::link::work_together;
use crate::store::{OrderEvent, OrderRow, Store, StoreError};

/// Maximum ids in one query.
const TOGETHER: usize = 128;
/// Concurrent queries.
const QUERIES: usize = 2;
/// Maximum requests waiting for a query.
const WAITING: usize = 50_000;

type Found = Result<Option<(OrderRow, Vec<OrderEvent>)>, StoreError>;

struct Lookup {
    id: OrderId,
    answer: oneshot::Sender<Found>,
}

/// Hands lookups to the reading task. Cheap to clone; the task ends with the last handle.
#[derive(Clone)]
pub(super) struct RowReader {
    lookups: mpsc::Sender<Lookup>,
    timeout: Duration,
}

impl RowReader {
    /// Must be called inside a tokio runtime.
    pub(super) fn spawn(store: Store) -> Self {
        let timeout = store.timeout();
        let (lookups, inbox) = mpsc::channel(WAITING);
        tokio::spawn(work_together(inbox, TOGETHER, QUERIES, move |together| {
            answer(store.clone(), together)
        }));
        Self { lookups, timeout }
    }

    /// The present row of an order and its events. The whole wait, in the queue and for the query, has the time
    /// limit of a query.
    pub(super) async fn order(&self, id: OrderId) -> Found {
        let (answer, found) = oneshot::channel();
        let full = |_| StoreError::Away("too many requests are waiting for the database".into());
        self.lookups.try_send(Lookup { id, answer }).map_err(full)?;
        match tokio::time::timeout(self.timeout, found).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => Err(StoreError::Away("the query was abandoned".into())),
            Err(_) => Err(StoreError::Away("no answer from the database in time".into())),
        }
    }
}

async fn answer(store: Store, mut together: Vec<Lookup>) {
    // Requests that gave up need no query.
    together.retain(|lookup| !lookup.answer.is_closed());
    let ids: Vec<OrderId> = together.iter().map(|lookup| lookup.id).collect();
    let rows = match read(&store, &ids).await {
        Ok(rows) => Ok(rows),
        // One unreadable row must not fail the other requests of the query.
        Err(StoreError::Broken(_)) if ids.len() > 1 => {
            for Lookup { id, answer } in together {
                let one = read(&store, &[id]).await.map(|mut rows| rows.remove(&id));
                let _ = answer.send(one);
            }
            return;
        }
        Err(error) => Err(error),
    };
    for Lookup { id, answer } in together {
        let found = rows.as_ref().map(|rows| rows.get(&id).cloned()).map_err(StoreError::clone);
        let _ = answer.send(found);
    }
}

async fn read(
    store: &Store,
    ids: &[OrderId],
) -> Result<HashMap<OrderId, (OrderRow, Vec<OrderEvent>)>, StoreError> {
    let rows = store.orders_by_id(ids).await?;
    // Most orders have not changed since their row was written, so no events are read for them.
    let changed: Vec<OrderId> = rows.iter().filter(|row| row.has_history()).map(|row| row.order.id).collect();
    let mut events = store.histories(&changed).await?;
    let with_events = rows.into_iter().map(|row| {
        let id = row.order.id;
        (id, (row, events.remove(&id).unwrap_or_default()))
    });
    Ok(with_events.collect())
}
