//! Sees to it that the outbox knows of every dead letter, also of those that the broker made by
//! itself because their workers died of them: a parked order is not sent round again by the sweep.
//! Done by the sweep's leader, who also measures how long the oldest has been waiting.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Millis, OrderId, SaleId};
use crate::gate::Gate;
use crate::queue::{Letter, Letters};

/// How often to look although nothing seems to have changed.
const AT_LEAST_EVERY: Duration = Duration::from_secs(30);
/// Letters looked at.
const MOST: usize = 1_000;

#[derive(Default)]
pub(super) struct Registrar {
    /// When was looked last, and how many there were.
    looked: Option<(Instant, u32)>,
    oldest: Option<Millis>,
    leads: bool,
}

impl Registrar {
    pub(super) async fn register(&mut self, gate: &Gate, letters: &Letters) {
        self.leads = true;
        let Some(depths) = letters.depths() else { return };
        if depths.dead == 0 {
            (self.looked, self.oldest) = (None, None);
        } else if self.looked.is_none_or(|(at, count)| count != depths.dead || at.elapsed() > AT_LEAST_EVERY)
        {
            match letters.list(MOST).await {
                Ok(found) => {
                    self.looked = Some((Instant::now(), depths.dead));
                    self.oldest = found.iter().filter_map(|letter| letter.since).min();
                    park(gate, &found).await;
                }
                Err(error) => tracing::warn!(%error, "dead letters could not be looked at"),
            }
        }
        let age = self.oldest.map_or(0, |oldest| (Millis::now().0 - oldest.0).max(0));
        metrics::gauge!("dead_letters_oldest_seconds").set(age as f64 / 1000.0);
    }

    /// Another process measures now.
    pub(super) fn resign(&mut self) {
        if std::mem::take(&mut self.leads) {
            metrics::gauge!("dead_letters_oldest_seconds").set(0.0);
        }
    }
}

async fn park(gate: &Gate, letters: &[Letter]) {
    let mut sales: BTreeMap<&SaleId, Vec<OrderId>> = BTreeMap::new();
    for order in letters.iter().flat_map(|letter| letter.orders.iter().flatten()) {
        sales.entry(&order.sale).or_default().push(order.id);
    }
    for (sale, ids) in sales {
        if let Err(error) = gate.parked(sale, &ids).await {
            tracing::warn!(%sale, %error, "dead letters could not be marked as parked");
        }
    }
}
