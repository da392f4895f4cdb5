//! Requests that wait for an order to be decided share one poll: its cost is that of the orders
//! waited for, not of the requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::domain::{OrderId, SaleId};
use crate::gate::Gate;

type Waiters = HashMap<SaleId, HashMap<OrderId, Vec<oneshot::Sender<()>>>>;

#[derive(Clone)]
pub(super) struct SharedPoll {
    waiters: Arc<Mutex<Waiters>>,
    someone: Arc<Notify>,
}

impl SharedPoll {
    /// The task ends when nothing else holds the watch.
    pub(super) fn spawn(gate: Gate, every: Duration) -> Self {
        let watch = Self { waiters: Arc::default(), someone: Arc::default() };
        let (waiters, someone) = (Arc::downgrade(&watch.waiters), watch.someone.clone());
        tokio::spawn(async move {
            loop {
                // Wakes up now and then by itself, to see whether it is still needed.
                let _ = tokio::time::timeout(Duration::from_secs(1), someone.notified()).await;
                loop {
                    let Some(waiters) = waiters.upgrade() else { return };
                    if !look(&gate, &waiters).await {
                        break;
                    }
                    drop(waiters);
                    tokio::time::sleep(every).await;
                }
            }
        });
        watch
    }

    /// Returns when the order is no longer in the outbox: its row is committed.
    pub(super) async fn settled(&self, sale: &SaleId, id: OrderId) {
        let (tell, told) = oneshot::channel();
        lock(&self.waiters).entry(sale.clone()).or_default().entry(id).or_default().push(tell);
        self.someone.notify_one();
        let _ = told.await;
    }
}

fn lock(waiters: &Mutex<Waiters>) -> std::sync::MutexGuard<'_, Waiters> {
    waiters.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One look at everything that is waited for. `false` when nobody waits.
async fn look(gate: &Gate, waiters: &Mutex<Waiters>) -> bool {
    let wanted: Vec<(SaleId, Vec<OrderId>)> = {
        let mut waiters = lock(waiters);
        // Requests that gave up have dropped their end.
        waiters.retain(|_, orders| {
            orders.retain(|_, tell| {
                tell.retain(|tell| !tell.is_closed());
                !tell.is_empty()
            });
            !orders.is_empty()
        });
        waiters.iter().map(|(sale, orders)| (sale.clone(), orders.keys().copied().collect())).collect()
    };
    for (sale, ids) in &wanted {
        // While Redis is away the waiters wait on, to their own deadlines.
        let Ok(tickets) = gate.tickets(sale, ids).await else { continue };
        let mut waiters = lock(waiters);
        let Some(orders) = waiters.get_mut(sale) else { continue };
        for (id, ticket) in ids.iter().zip(tickets) {
            if ticket.is_none() {
                for tell in orders.remove(id).into_iter().flatten() {
                    let _ = tell.send(());
                }
            }
        }
    }
    !wanted.is_empty()
}
