//! Reading rows for many requests at once: those that wait at the same time share a query. A repeat of an
//! order that has its row is told how the row stands now, and nothing of it is remembered.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::domain::OrderId;
use crate::link::work_together;
use crate::store::{OrderEvent, OrderRow, Store, StoreError};

/// Ids in one query.
const TOGETHER: usize = 128;
/// Queries under way at once.
const QUERIES: usize = 2;
/// Requests that may wait for a query.
const WAITING: usize = 50_000;

type Found = Result<Option<(OrderRow, Vec<OrderEvent>)>, StoreError>;

struct Lookup {
    id: OrderId,
    answer: oneshot::Sender<Found>,
}

/// Cheap to clone; the task ends with the last handle.
#[derive(Clone)]
pub(super) struct RowReader {
    asked: mpsc::Sender<Lookup>,
    patience: Duration,
}

impl RowReader {
    /// Must be called inside a tokio runtime.
    pub(super) fn spawn(store: Store) -> Self {
        let patience = store.timeout();
        let (asked, inbox) = mpsc::channel(WAITING);
        tokio::spawn(work_together(inbox, TOGETHER, QUERIES, move |together| {
            answer(store.clone(), together)
        }));
        Self { asked, patience }
    }

    /// The row of an order as it is now, and what has happened to it. Waits no longer for its turn than the
    /// query itself may take.
    pub(super) async fn order(&self, id: OrderId) -> Found {
        let (answer, found) = oneshot::channel();
        let full = |_| StoreError::Away("too many requests wait for the database".into());
        self.asked.try_send(Lookup { id, answer }).map_err(full)?;
        match tokio::time::timeout(self.patience, found).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => Err(StoreError::Away("the query was abandoned".into())),
            Err(_) => Err(StoreError::Away("no answer from the database in time".into())),
        }
    }
}

async fn answer(store: Store, mut together: Vec<Lookup>) {
    // Whoever gave up waiting costs nothing.
    together.retain(|asked| !asked.answer.is_closed());
    let ids: Vec<OrderId> = together.iter().map(|asked| asked.id).collect();
    let rows = match read(&store, &ids).await {
        Ok(rows) => Ok(rows),
        // One row that cannot be read is its buyer's trouble, and not that of those beside him.
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
    // Nothing has happened to most orders since their row was written: theirs are not asked for.
    let changed: Vec<OrderId> = rows.iter().filter(|row| row.has_history()).map(|row| row.order.id).collect();
    let mut events = store.histories(&changed).await?;
    let with_events = rows.into_iter().map(|row| {
        let id = row.order.id;
        (id, (row, events.remove(&id).unwrap_or_default()))
    });
    Ok(with_events.collect())
}
