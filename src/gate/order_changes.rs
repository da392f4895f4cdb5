//! Changes of orders as the gate announces them: when an order has left the outbox, and when a later change is committed.
//! An announcement carries ids only. The listener reads the order, and must also read it now and then without one: a
//! process may die between its commit and the announcement.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::core::Gate;
use super::keys::SaleKeys;
use super::wire::read_order_id;
use crate::domain::{OrderId, SaleId};
use crate::link::{Listener, listen};

/// Who in this process follows which orders; one connection to Redis for all of them, open only while there are any. Cheap
/// to clone.
#[derive(Clone)]
pub struct OrderChanges {
    followed: Arc<Followed>,
    prefix: Arc<str>,
    nudge: Arc<Notify>,
    /// Ends the task that listens.
    _end: Arc<DropGuard>,
}

#[derive(Default)]
struct Followed {
    /// By channel, because that is what an announcement names.
    channels: Mutex<HashMap<String, HashMap<OrderId, watch::Sender<()>>>>,
}

/// One order that is followed, until this is dropped.
pub struct Following {
    followed: Arc<Followed>,
    channel: String,
    id: OrderId,
    changes: watch::Receiver<()>,
}

impl OrderChanges {
    /// Must be called inside a tokio runtime. Does not wait for Redis.
    pub fn of(gate: &Gate) -> Self {
        let (followed, nudge, end) =
            (Arc::<Followed>::default(), Arc::<Notify>::default(), CancellationToken::new());
        tokio::spawn(listen(Arc::downgrade(&followed), nudge.clone(), gate.link.clone(), end.clone()));
        Self {
            followed,
            prefix: gate.settings.prefix.as_str().into(),
            nudge,
            _end: Arc::new(end.drop_guard()),
        }
    }

    /// Follows an order. Read the order afterwards: what was announced before is not heard.
    pub fn follow(&self, sale: &SaleId, id: OrderId) -> Following {
        let channel = SaleKeys::new(&self.prefix, sale).outbox();
        let mut channels = self.followed.locked();
        let orders = channels.entry(channel.clone()).or_default();
        let is_first = orders.is_empty();
        let changes = orders.entry(id).or_insert_with(|| watch::Sender::new(())).subscribe();
        drop(channels);
        if is_first {
            self.nudge.notify_one();
        }
        Following { followed: self.followed.clone(), channel, id, changes }
    }
}

impl Following {
    /// Returns when the order may have changed since the last call. Nothing is missed if the future is dropped.
    pub async fn changed(&mut self) {
        // The sender lives as long as this.
        let _ = self.changes.changed().await;
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut channels = self.followed.locked();
        let Some(orders) = channels.get_mut(&self.channel) else { return };
        // This one is still among them.
        if orders.get(&self.id).is_some_and(|sender| sender.receiver_count() <= 1) {
            orders.remove(&self.id);
        }
        if orders.is_empty() {
            channels.remove(&self.channel);
        }
    }
}

impl Followed {
    fn locked(&self) -> MutexGuard<'_, HashMap<String, HashMap<OrderId, watch::Sender<()>>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for Followed {
    const WHAT: &'static str = "changes of orders";

    fn channels(&self) -> Vec<String> {
        self.locked().keys().cloned().collect()
    }

    fn hear(&self, channel: &str, ids: &str) {
        let channels = self.locked();
        let Some(orders) = channels.get(channel) else { return };
        let senders = ids.split(' ').filter_map(|id| orders.get(&read_order_id(id).ok()?));
        senders.for_each(|sender| sender.send_replace(()));
    }

    fn catch_up(&self, channel: &str) {
        let channels = self.locked();
        channels
            .get(channel)
            .into_iter()
            .flat_map(HashMap::values)
            .for_each(|sender| sender.send_replace(()));
    }
}
