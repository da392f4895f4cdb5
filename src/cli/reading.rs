//! Shows how far the reading of a sale's books has come: with millions of orders it takes minutes.

use std::sync::Mutex;

use crate::domain::SaleId;
use crate::rehearsal::drill::Progress as Bar;
use crate::store::Store;

/// Progress over the orders of one sale, in stages.
pub(super) struct Reading {
    bar: Bar,
    orders: usize,
    stage: Mutex<&'static str>,
}

impl Reading {
    /// Counts the orders, so that the bar can say how long it will take. If that takes too long, it shows the rate only.
    pub(super) async fn of(store: &Store, sale: &SaleId) -> Self {
        let orders = store.count_orders(sale).await.unwrap_or(0);
        Self { bar: Bar::on_stderr(), orders: usize::try_from(orders).unwrap_or(0), stage: Mutex::new("") }
    }

    /// `done` orders have been read in this stage.
    pub(super) fn reach(&self, stage: &'static str, done: u64) {
        let mut current = self.stage.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if *current != stage {
            *current = stage;
            self.bar.begin(self.orders, stage);
        }
        self.bar.reach(done);
    }

    /// Removes the bar.
    pub(super) fn end(self) {
        self.bar.end();
    }
}
