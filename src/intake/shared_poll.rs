//! Requests that wait for an order's outcome share one poll, so its cost depends on the orders waited for and not
//! on the number of requests.

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
    arrived: Arc<Notify>,
}

impl SharedPoll {
    /// Starts the polling task, which ends with the last handle.
    pub(super) fn spawn(gate: Gate, every: Duration) -> Self {
        let handle = Self { waiters: Arc::default(), arrived: Arc::default() };
        let (waiters, arrived) = (Arc::downgrade(&handle.waiters), handle.arrived.clone());
        tokio::spawn(async move {
            loop {
                // Also wakes up once a second, to find out whether any handle is left.
                let _ = tokio::time::timeout(Duration::from_secs(1), arrived.notified()).await;
                loop {
                    let Some(waiters) = waiters.upgrade() else { return };
                    if !poll(&gate, &waiters).await {
                        break;
                    }
                    drop(waiters);
                    tokio::time::sleep(every).await;
                }
            }
        });
        handle
    }

    /// Returns when the order's row is committed: the outbox has no entry of it, or one that says so.
    pub(super) async fn wait_until_settled(&self, sale: &SaleId, id: OrderId) {
        let (sender, settled) = oneshot::channel();
        lock(&self.waiters).entry(sale.clone()).or_default().entry(id).or_default().push(sender);
        self.arrived.notify_one();
        let _ = settled.await;
    }
}

fn lock(waiters: &Mutex<Waiters>) -> std::sync::MutexGuard<'_, Waiters> {
    waiters.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Checks every order that somebody waits for. Returns `false` if nobody waits.
async fn poll(gate: &Gate, waiters: &Mutex<Waiters>) -> bool {
    let wanted: Vec<(SaleId, Vec<OrderId>)> = {
        let mut waiters = lock(waiters);
        // Requests that gave up have dropped their receiver.
        waiters.retain(|_, orders| {
            orders.retain(|_, senders| {
                senders.retain(|sender| !sender.is_closed());
                !senders.is_empty()
            });
            !orders.is_empty()
        });
        waiters.iter().map(|(sale, orders)| (sale.clone(), orders.keys().copied().collect())).collect()
    };
    for (sale, ids) in &wanted {
        // While Redis is away, the requests keep waiting until their own deadlines.
        let Ok(tickets) = gate.tickets(sale, ids).await else { continue };
        let mut waiters = lock(waiters);
        let Some(orders) = waiters.get_mut(sale) else { continue };
        for (id, ticket) in ids.iter().zip(tickets) {
            if ticket.is_none_or(|ticket| ticket.ended) {
                for sender in orders.remove(id).into_iter().flatten() {
                    let _ = sender.send(());
                }
            }
        }
    }
    !wanted.is_empty()
}
