//! The second trigger of the relay: publishes what no front has seen confirmed, and settles what
//! has a row but was never settled because a worker died in between. One process does it at a
//! time, by a lease; another takes over when it dies.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::dead_letter_marks::DeadLetterMarks;
use super::leader::{LEADERSHIP, lead};
use crate::domain::{Durability, SaleId, Ticket};
use crate::gate::Gate;
use crate::intake::Relay;
use crate::lease::{Guard, Leases};
use crate::queue::DeadLetters;
use crate::settlement::settlement_of;
use crate::store::Store;

#[derive(Debug, Clone)]
pub struct SweepSettings {
    pub every: Duration,
    /// Entries looked at per sale and round.
    pub batch: usize,
    /// How long until an entry is looked at again.
    pub spacing: Duration,
    /// How long the dead-letter queue must have been empty before what is parked counts as lost.
    pub parked_after: Duration,
}

/// Batches of one sale in one round, so that the others have their turn.
const BATCHES: usize = 10;
/// When to look again at what could not be published.
const SOON: Duration = Duration::from_secs(2);
/// No sale can have this id, so no buyer's lease is the leader's.
const SCOPE: &str = "_sweep";

pub struct Sweep {
    pub gate: Gate,
    pub leases: Leases,
    pub relay: Relay,
    pub dead_letters: DeadLetters,
    pub store: Store,
    pub settings: SweepSettings,
}

impl Sweep {
    /// Runs until `stop`. Trouble of any kind is waited out.
    pub async fn run(self, stop: CancellationToken) {
        let mut leader: Option<Guard> = None;
        let mut marks = DeadLetterMarks::default();
        // When the broker could be used last, and until when another is given the chance.
        let (mut usable, mut stand_back) = (Instant::now(), Instant::now());
        while stop.run_until_cancelled(tokio::time::sleep(self.settings.every)).await.is_some() {
            // Whoever cannot publish must not keep others from it.
            let up = self.relay.publisher().is_up();
            if up {
                usable = Instant::now();
            } else if usable.elapsed() > SOON
                && let Some(useless) = leader.take()
            {
                tracing::info!("the sweep is left to another front: the broker cannot be used from here");
                let _ = useless.release().await;
                marks.resign();
                stand_back = Instant::now() + LEADERSHIP;
            }
            if leader.is_none() && !up && Instant::now() < stand_back {
                continue;
            }
            leader = lead(&self.leases, SCOPE, leader).await;
            let Some(guard) = &leader else {
                marks.resign();
                continue;
            };
            marks.register(&self.gate, &self.dead_letters).await;
            let lost = marks.has_lost_dead_letters(self.settings.parked_after);
            match guard.until_lost(self.round(guard, lost)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(error, "sweep interrupted"),
                Err(error) => tracing::warn!(%error, "sweep left to another front"),
            }
        }
        if let Some(leader) = leader {
            let _ = leader.release().await;
        }
    }

    async fn round(&self, leader: &Guard, dead_letters_lost: bool) -> Result<(), String> {
        for sale in self.gate.sales().await.map_err(|error| error.to_string())? {
            // Trouble with one sale is not the others'.
            if let Err(error) = self.sweep(&sale, leader, dead_letters_lost).await {
                tracing::warn!(%sale, error, "sweep interrupted");
            }
        }
        Ok(())
    }

    /// Takes what is due, and goes on at once while there is more: after an outage of the broker
    /// everything that was accepted meanwhile waits here.
    async fn sweep(&self, sale: &SaleId, leader: &Guard, dead_letters_lost: bool) -> Result<(), String> {
        for _ in 0..BATCHES {
            if !leader.is_valid_for(LEADERSHIP / 2) {
                // After an error it goes on until the lease ends.
                let _ = leader.renew().await;
            }
            let up = self.relay.publisher().is_up();
            // While the broker is away nothing is published: what is due must not be put off for
            // long, or it would wait on after the broker's return.
            let spacing = if up { self.settings.spacing } else { self.settings.spacing.min(SOON) };
            let due = self.gate.claim_due(sale, self.settings.batch, spacing).await;
            let due = due.map_err(|error| error.to_string())?;
            if due.is_empty() {
                return Ok(());
            }
            self.sweep_batch(sale, &due, dead_letters_lost).await;
            if due.len() < self.settings.batch || !up {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn sweep_batch(&self, sale: &SaleId, due: &[Ticket], dead_letters_lost: bool) {
        let settled = self.settle(sale, due).await;
        // Not known while the database is away: then nobody has been overtaken.
        let persisted = self.store.highest_number(sale).await.ok();
        self.gate.observe_number(sale, persisted.unwrap_or_default());
        // Nothing waits in the queue, and the database takes orders: what has no row is not there.
        let idle =
            persisted.is_some() && self.relay.publisher().depths().is_some_and(|depths| depths.orders == 0);
        let astray = due.iter().filter(|ticket| !settled.contains(&ticket.order.id)).filter(|ticket| {
            if ticket.parked {
                return dead_letters_lost;
            }
            let waits = ticket.durability == Durability::Outbox;
            // ScheduledTask again long after its confirm, and a later order has its row: it went astray.
            let overtaken = persisted.is_some_and(|persisted| ticket.order.number < persisted);
            waits || overtaken || idle
        });
        let mut published = 0;
        if self.relay.publisher().is_up() {
            // Waited for, or a large batch would find the publisher's window full.
            let carried =
                futures_util::future::join_all(astray.map(|ticket| self.relay.carry(&ticket.order)));
            published = carried.await.into_iter().filter(|confirmed| *confirmed).count();
            let parked = due.iter().filter(|ticket| ticket.parked && dead_letters_lost);
            let parked: Vec<_> = parked.map(|ticket| ticket.order.id).collect();
            if !parked.is_empty() {
                let _ = self.gate.mark_replayed(sale, &parked).await;
            }
        }
        if published + settled.len() > 0 {
            metrics::counter!("sweep_published_total").increment(published as u64);
            metrics::counter!("sweep_settled_total").increment(settled.len() as u64);
            tracing::info!(%sale, published, settled = settled.len(), "sweep found orders left behind");
        }
    }

    /// Settles the entries whose row exists; says which those are, also where the gate could not be
    /// told: they need no publishing. With the database away, none.
    async fn settle(&self, sale: &SaleId, due: &[Ticket]) -> Vec<crate::domain::OrderId> {
        let ids: Vec<_> = due.iter().map(|ticket| ticket.order.id).collect();
        let Ok(rows) = self.store.orders_by_id(&ids).await else { return Vec::new() };
        let mut settlements = Vec::with_capacity(rows.len());
        for row in &rows {
            match settlement_of(&self.store, &row.order, row.failure).await {
                Ok(settlement) => settlements.push(settlement),
                Err(error) => tracing::debug!(order_id = %row.order.id, %error, "left for the next round"),
            }
        }
        if !settlements.is_empty()
            && let Err(error) = self.gate.settle(sale, &settlements).await
        {
            tracing::debug!(%sale, %error, "left for the next round");
        }
        rows.into_iter().map(|row| row.order.id).collect()
    }
}
