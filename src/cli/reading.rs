//! Shows how far the reading of a sale's books has come: with millions of orders it takes minutes.

use std::sync::Mutex;

use crate::domain::SaleId;
use crate::rehearsal::drill::Progress as Bar;
use crate::store::Store;

/// Progress in stages, most of them over the orders of one sale.
pub(super) struct Reading {
    bar: Bar,
    orders: u64,
    /// The present stage and its total.
    stage: Mutex<(&'static str, u64)>,
}

impl Reading {
    /// Counts the orders, so that the bar can say how long it will take. If that takes too long, it shows the rate only.
    pub(super) async fn of(store: &Store, sale: &SaleId) -> Self {
        Self { orders: store.count_orders(sale).await.unwrap_or(0), ..Self::of_unknown() }
    }

    /// Shows the rate only.
    pub(super) fn of_unknown() -> Self {
        Self { bar: Bar::on_stderr(), orders: 0, stage: Mutex::new(("", 0)) }
    }

    /// `done` orders have been read in this stage.
    pub(super) fn reach(&self, stage: &'static str, done: u64) {
        self.reach_of(stage, done, self.orders);
    }

    /// `done` of `total` are done in this stage.
    pub(super) fn reach_of(&self, stage: &'static str, done: u64, total: u64) {
        let mut current = self.stage.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match *current == (stage, total) {
            true => {}
            false if current.0 == stage => self.bar.length(total),
            false => self.bar.begin(usize::try_from(total).unwrap_or(0), stage),
        }
        *current = (stage, total);
        self.bar.reach(done);
    }

    /// Prints a line above the bar.
    pub(super) fn say(&self, text: &str) {
        self.bar.say(text);
    }

    /// Removes the bar.
    pub(super) fn end(self) {
        self.bar.end();
    }
}
