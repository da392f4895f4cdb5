//! Marks the outbox entry of every dead letter as parked, so that the sweep does not publish the order again. Workers
//! mark the dead letters that they write. This part of the sweep finds the others, which the broker made because a
//! message killed its workers. The leader also measures how long the oldest has been waiting.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::{Millis, OrderId, SaleId};
use crate::gate::Gate;
use crate::queue::{DeadLetter, DeadLetters};

/// How often to look even if the number of dead letters has not changed.
const AT_LEAST_EVERY: Duration = Duration::from_secs(30);

/// Maximum dead letters in one look.
const MOST: usize = 5_000;

/// How long one look may read, and how long it may split: the sweep, which waits for it, would lose its lead.
const LOOKS_FOR: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct DeadLetterMarks {
    /// The time of the last look, and how many there were.
    looked: Option<(Instant, u32)>,
    oldest: Option<Millis>,
    empty_since: Option<Instant>,
    leads: bool,
}

impl DeadLetterMarks {
    /// Marks new dead letters and measures the oldest. Errors are logged and retried in the next round.
    pub(super) async fn update(&mut self, gate: &Gate, dead_letters: &DeadLetters) {
        self.leads = true;
        let Some(depths) = dead_letters.depths() else {
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
                self.look(gate, dead_letters, depths.dead).await;
            }
        }
        let age = self.oldest.map_or(0, |oldest| (Millis::now().0 - oldest.0).max(0));
        metrics::gauge!("doorbuster_dead_letters_oldest_seconds").set(age as f64 / 1000.0);
    }

    /// Marks them while this process holds them, so that nobody can end one meanwhile.
    async fn look(&mut self, gate: &Gate, dead_letters: &DeadLetters, count: u32) {
        let began = Instant::now();
        match dead_letters.hold_within(MOST, LOOKS_FOR).await {
            Ok(held) => {
                // Other processes may be holding some. Those come back, and the next round looks again.
                let all = held.letters.len() >= MOST.min(count as usize) || began.elapsed() >= LOOKS_FOR;
                self.looked = all.then(|| (Instant::now(), count));
                self.oldest = held.letters.iter().filter_map(|letter| letter.since).min();
                mark_parked(gate, &held.letters).await;
                if let Err(error) = held.split_within(dead_letters, LOOKS_FOR).await {
                    tracing::warn!(%error, "a dead letter with several orders could not be split");
                    // Look again in the next round even if the count is the same.
                    self.looked = None;
                }
                held.put_back().await;
            }
            Err(error) => tracing::warn!(%error, "dead letters could not be read"),
        }
    }

    /// Whether the dead-letter queue has been empty for so long that the orders still parked were lost. One look is not
    /// enough, because a process that reads dead letters holds them for a moment.
    pub(super) fn were_lost(&self, after: Duration) -> bool {
        self.empty_since.is_some_and(|since| since.elapsed() > after)
    }

    /// From now on another process measures.
    pub(super) fn resign(&mut self) {
        self.empty_since = None;
        if std::mem::take(&mut self.leads) {
            metrics::gauge!("doorbuster_dead_letters_oldest_seconds").set(0.0);
        }
    }
}

async fn mark_parked(gate: &Gate, letters: &[DeadLetter]) {
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
