//! All buyers who follow their orders by events.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::OrderId;

/// Those who follow their orders. Clones share them.
#[derive(Clone, Default)]
pub struct Followers {
    /// The orders that are followed: one that was bought with two clicks is followed once.
    orders: Arc<Mutex<HashSet<OrderId>>>,
    tasks: TaskTracker,
    last: CancellationToken,
}

impl Followers {
    /// Runs `work`, unless somebody follows the order already. Its token is cancelled when the orders are at rest.
    pub(super) fn begin<F>(&self, order: OrderId, work: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.orders.lock().unwrap_or_else(PoisonError::into_inner).insert(order) {
            self.tasks.spawn(work(self.last.clone()));
        }
    }

    /// Once the orders are at rest: has everybody come back for the last time, and returns when they have heard all.
    pub async fn finish(&self) {
        self.last.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
