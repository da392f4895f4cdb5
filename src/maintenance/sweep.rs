//! The second trigger of the relay. It publishes orders that no front has seen confirmed, and settles orders that
//! have a row but were never settled because their worker died in between. One front does it at a time, and it
//! must be one that can publish.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::MaintenanceError;
use super::dead_letter_marks::DeadLetterMarks;
use super::leader::{LEADERSHIP, Leader, keep_leading};
use crate::domain::{Durability, Number, OrderId, SaleId, Ticket};
use crate::gate::{Gate, GateError};
use crate::intake::Relay;
use crate::lease::{Guard, Leases};
use crate::queue::DeadLetters;
use crate::settlement::{Settler, pause_sale, settlement_of};
use crate::store::{OrderRow, Store, StoreError};

/// How often to sweep, and how much at once.
#[derive(Debug, Clone)]
pub struct SweepSettings {
    /// Time between two rounds.
    pub every: Duration,
    /// Outbox entries in one batch of a sale.
    pub batch: usize,
    /// How long until an entry is looked at again.
    pub spacing: Duration,
    /// How long the dead-letter queue must have been empty before parked orders count as lost.
    pub parked_after: Duration,
}

/// Batches of one sale in one round, so that the other sales get their turn.
const BATCHES: usize = 10;

/// How long until an entry that could not be published is looked at again.
const SOON: Duration = Duration::from_secs(2);

/// What the database has is waited for so long, whatever its own time limit: a round must end while the lead lasts, and
/// entries are published without it.
const RECORDED_WITHIN: Duration = Duration::from_secs(2);

const SCOPE: &str = "_sweep";

/// Sweeps the outboxes of all sales, on one front at a time.
pub struct Sweep {
    /// Has the outboxes.
    pub gate: Gate,
    /// Decides who leads.
    pub leases: Leases,
    /// Publishes.
    pub relay: Relay,
    /// Holds the messages of parked orders.
    pub dead_letters: DeadLetters,
    /// Has the rows of orders that only need settling.
    pub store: Store,
    /// How often and how much.
    pub settings: SweepSettings,
}

impl Sweep {
    /// Runs until `stop`. Errors are logged and retried in a later round.
    pub async fn run(self, stop: CancellationToken) {
        let mut leader = Leader::new(&self.leases, SCOPE);
        let mut marks = DeadLetterMarks::default();
        // When the broker was last usable, and until when this front leaves the lead to another.
        let (mut usable, mut stand_back) = (Instant::now(), Instant::now());
        while stop.run_until_cancelled(tokio::time::sleep(self.settings.every)).await.is_some() {
            // A front that cannot publish must not keep the lead from one that can.
            let up = self.relay.publisher().is_up();
            if up {
                usable = Instant::now();
            } else if usable.elapsed() > SOON && leader.leads() {
                tracing::info!("the sweep is left to another front: the broker cannot be used from here");
                leader.resign().await;
                marks.resign();
                stand_back = Instant::now() + LEADERSHIP;
            }
            if !leader.leads() && !up && Instant::now() < stand_back {
                continue;
            }
            let Ok(Some(lead)) = leader.lead().await else {
                marks.resign();
                continue;
            };
            marks.update(&self.gate, &self.dead_letters).await;
            let dead_letters_lost = marks.were_lost(self.settings.parked_after);
            match lead.until_lost(self.round(lead, dead_letters_lost)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "sweep interrupted"),
                Err(error) => tracing::warn!(%error, "sweep left to another front"),
            }
        }
        leader.resign().await;
    }

    async fn round(&self, leader: &Guard, dead_letters_lost: bool) -> Result<(), MaintenanceError> {
        for sale in self.gate.sales().await? {
            // An error in one sale must not hold up the others.
            if let Err(error) = self.sweep(&sale, leader, dead_letters_lost).await {
                tracing::warn!(%sale, %error, "sweep interrupted");
            }
        }
        Ok(())
    }

    /// Works through the entries that are due, batch after batch: after an outage of the broker everything that was
    /// accepted meanwhile waits here.
    async fn sweep(
        &self,
        sale: &SaleId,
        leader: &Guard,
        dead_letters_lost: bool,
    ) -> Result<(), MaintenanceError> {
        for _ in 0..BATCHES {
            keep_leading(leader).await;
            let up = self.relay.publisher().is_up();
            // While the broker is unavailable nothing is published. A long spacing would then keep entries waiting
            // after the broker is back.
            let spacing = if up { self.settings.spacing } else { self.settings.spacing.min(SOON) };
            let due = self.gate.claim_due(sale, self.settings.batch, spacing).await?;
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
        // Nothing while the database is unavailable or behind: then nothing is settled, and no entry counts as overtaken.
        let recorded = tokio::time::timeout(RECORDED_WITHIN, self.recorded(sale, due)).await;
        let (rows, persisted) = match recorded {
            Ok(Ok((rows, highest))) => (rows, Some(highest)),
            Ok(Err(_)) | Err(_) => (Vec::new(), None),
        };
        let settled = self.settle(sale, due, rows).await;
        self.gate.observe_number(sale, persisted.unwrap_or_default());
        // The queue is empty and the database takes orders, so an order without a row is not in the queue.
        let idle =
            persisted.is_some() && self.relay.publisher().depths().is_some_and(|depths| depths.orders == 0);
        let is_astray = |ticket: &&Ticket| {
            if settled.contains(&ticket.order.id) {
                return false;
            }
            if ticket.parked {
                return dead_letters_lost;
            }
            let waits = ticket.durability == Durability::Outbox;
            // It is due again long after its confirm, although a later order has its row: the message is lost.
            let overtaken = persisted.is_some_and(|persisted| ticket.order.number < persisted);
            waits || overtaken || idle
        };
        let mut published = 0;
        if self.relay.publisher().is_up() {
            let astray: Vec<&Ticket> = due.iter().filter(is_astray).collect();
            // Awaited, because the next batch would find the publisher's window full.
            let carried = join_all(astray.iter().map(|ticket| self.relay.publish(&ticket.order, None))).await;
            let carried = astray.iter().zip(carried).filter(|(_, confirmed)| *confirmed);
            let carried: Vec<&Ticket> = carried.map(|(ticket, _)| *ticket).collect();
            published = carried.len();
            // One that the broker did not confirm stays parked, and is tried again.
            let parked: Vec<_> =
                carried.iter().filter(|ticket| ticket.parked).map(|ticket| ticket.order.id).collect();
            if !parked.is_empty() {
                let _ = self.gate.mark_replayed(sale, &parked).await;
            }
        }
        if published + settled.len() > 0 {
            metrics::counter!("doorbuster_sweep_published_total").increment(published as u64);
            metrics::counter!("doorbuster_sweep_settled_total").increment(settled.len() as u64);
            tracing::info!(%sale, published, settled = settled.len(), "sweep found orders left behind");
        }
    }

    /// The rows of these entries, and the highest number of the sale in the database.
    async fn recorded(&self, sale: &SaleId, due: &[Ticket]) -> Result<(Vec<OrderRow>, Number), StoreError> {
        let ids: Vec<_> = due.iter().map(|ticket| ticket.order.id).collect();
        self.store.ensure_current().await?;
        let rows = self.store.orders_by_id(&ids).await?;
        Ok((rows, self.store.highest_number(sale).await?))
    }

    /// Settles the entries that have a row, and returns their ids. They need no publishing, even if the gate could
    /// not be reached to settle them.
    async fn settle(&self, sale: &SaleId, due: &[Ticket], rows: Vec<OrderRow>) -> Vec<OrderId> {
        let (mut settlements, mut replaced) = (Vec::with_capacity(rows.len()), Vec::new());
        for OrderRow { order, failure, .. } in &rows {
            match settlement_of(order, *failure) {
                Some(settlement) => settlements.push(settlement),
                None => replaced.push(order),
            }
        }
        let settler = Settler { gate: &self.gate, store: &self.store, leases: &self.leases };
        if let Err(error) = self.pause_if_wrong(settler, due, &rows).await {
            // Its buyer must not be freed before the sale is paused.
            tracing::debug!(%sale, %error, "left for the next round");
            return rows.into_iter().map(|row| row.order.id).collect();
        }
        match settler.settle_replaced(&replaced).await {
            Ok(settled) if settled == replaced.len() => {}
            settled => {
                tracing::debug!(%sale, orders = replaced.len(), ?settled, "some are left for the next round")
            }
        }
        if !settlements.is_empty()
            && let Err(error) = self.gate.settle(sale, &settlements).await
        {
            tracing::debug!(%sale, %error, "left for the next round");
        }
        rows.into_iter().map(|row| row.order.id).collect()
    }

    /// Pauses the sale if one of these orders shows that its gate promises what does not exist: the worker that recorded the
    /// refusal may have died before it did. A gate that was rebuilt since is not paused.
    async fn pause_if_wrong(
        &self,
        settler: Settler<'_>,
        due: &[Ticket],
        rows: &[OrderRow],
    ) -> Result<(), GateError> {
        let stops = |ticket: &Ticket| {
            let row = rows.iter().find(|row| row.order.id == ticket.order.id);
            row.and_then(|row| row.failure).filter(|failure| failure.stops_the_sale())
        };
        // Not by the row: one that was refused for its number has none.
        let refused = due.iter().filter_map(|ticket| Some((ticket, stops(ticket)?)));
        let Some((ticket, failure)) = refused.max_by_key(|(ticket, _)| ticket.order.number) else {
            return Ok(());
        };
        pause_sale(settler, &ticket.order.sale, failure, Some(ticket.order.number.epoch)).await
    }
}
