//! Sees to it that the outbox knows of every dead letter, also of those that the broker made by
//! itself because their workers died of them: a parked order is not sent round again by the sweep.
//! Done by the sweep's leader, who also measures how long the oldest has been waiting.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Millis, OrderId, SaleId};
use crate::gate::Gate;
use crate::queue::{DeadLetter, DeadLetters};

/// How often to look although nothing seems to have changed.
const AT_LEAST_EVERY: Duration = Duration::from_secs(30);
/// Dead letters looked at.
const MOST: usize = 5_000;

#[derive(Default)]
pub(super) struct DeadLetterMarks {
    /// When was looked last, and how many there were.
    looked: Option<(Instant, u32)>,
    oldest: Option<Millis>,
    empty_since: Option<Instant>,
    leads: bool,
}

impl DeadLetterMarks {
    pub(super) async fn register(&mut self, gate: &Gate, letters: &DeadLetters) {
        self.leads = true;
        let Some(depths) = letters.depths() else {
            self.empty_since = None;
            return;
        };
        if depths.dead == 0 {
            self.empty_since.get_or_insert_with(Instant::now);
            (self.looked, self.oldest) = (None, None);
        } else {
            self.empty_since = None;
            let stale = |(at, count): (Instant, u32)| count != depths.dead || at.elapsed() > AT_LEAST_EVERY;
            if self.looked.is_none_or(stale) {
                self.look(gate, letters, depths.dead).await;
            }
        }
        let age = self.oldest.map_or(0, |oldest| (Millis::now().0 - oldest.0).max(0));
        metrics::gauge!("dead_letters_oldest_seconds").set(age as f64 / 1000.0);
    }

    /// Marked while they are held, so that nobody ends one in between.
    async fn look(&mut self, gate: &Gate, letters: &DeadLetters, count: u32) {
        match letters.hold(MOST).await {
            Ok(held) => {
                // What somebody else holds comes back, and is looked at in the next round.
                let all = held.letters.len() >= MOST.min(count as usize);
                self.looked = all.then(|| (Instant::now(), count));
                self.oldest = held.letters.iter().filter_map(|letter| letter.since).min();
                park(gate, &held.letters).await;
                if let Err(error) = held.split(letters).await {
                    tracing::warn!(%error, "a dead letter with several orders could not be parted");
                    // In the next round again, though as many are there as before.
                    self.looked = None;
                }
                held.put_back().await;
            }
            Err(error) => tracing::warn!(%error, "dead letters could not be looked at"),
        }
    }

    /// Has the dead-letter queue been empty for so long that whatever is still parked was lost?
    /// Not at once: whoever looks at letters holds them for a moment.
    pub(super) fn has_lost_dead_letters(&self, after: Duration) -> bool {
        self.empty_since.is_some_and(|since| since.elapsed() > after)
    }

    /// Another process measures now.
    pub(super) fn resign(&mut self) {
        self.empty_since = None;
        if std::mem::take(&mut self.leads) {
            metrics::gauge!("dead_letters_oldest_seconds").set(0.0);
        }
    }
}

async fn park(gate: &Gate, letters: &[DeadLetter]) {
    let mut sales: BTreeMap<&SaleId, Vec<OrderId>> = BTreeMap::new();
    for order in letters.iter().flat_map(|letter| letter.orders.iter().flatten()) {
        sales.entry(&order.sale).or_default().push(order.id);
    }
    for (sale, ids) in sales {
        if let Err(error) = gate.mark_parked(sale, &ids).await {
            tracing::warn!(%sale, %error, "dead letters could not be marked as parked");
        }
    }
}
