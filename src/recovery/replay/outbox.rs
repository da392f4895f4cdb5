//! Replays orders from the outbox: accepted orders without a row are published again.

use std::collections::BTreeSet;
use std::time::Instant;

use super::error::ReplayError;
use super::parts::Replay;
use super::rows::{self, count_row};
use super::work::Work;
use crate::domain::{Order, SaleId, Ticket};
use crate::queue::PublishError;
use crate::settlement::Settler;
use crate::store::OrderRow;

/// Orders that are published together.
const BATCH: usize = 500;

impl Work<'_> {
    pub(super) async fn outbox(&mut self) -> Result<(), ReplayError> {
        let tickets = self.tickets().await?;
        let total = tickets.len() as u64;
        let sales: BTreeSet<SaleId> = tickets.iter().map(|ticket| ticket.order.sale.clone()).collect();
        self.begin(sales, total).await?;
        let rate = self.request.rate.map(|rate| usize::try_from(rate).unwrap_or(BATCH));
        let most = rate.map_or(BATCH, |rate| rate.clamp(1, BATCH));
        for tickets in tickets.chunks(most) {
            if !self.room_in_the_queue(tickets.len()).await? {
                break;
            }
            let began = Instant::now();
            self.replay_tickets(tickets).await?;
            if !self.after_batch(tickets.len() as u64, total, began.elapsed()).await? {
                break;
            }
        }
        Ok(())
    }

    /// The outbox entries that pass the filter, oldest first.
    async fn tickets(&self) -> Result<Vec<Ticket>, ReplayError> {
        let filter = &self.request.filter;
        let mut sales = self.replay.gate.sales().await?;
        if let Some(wanted) = &filter.sale {
            if !sales.contains(wanted) {
                return Err(ReplayError::Usage(format!("the gate knows no sale {wanted}")));
            }
            sales.retain(|sale| sale == wanted);
        }
        let mut tickets: Vec<Ticket> = Vec::new();
        for sale in &sales {
            let held = self.replay.gate.in_flight(sale).await?.into_iter();
            tickets.extend(held.filter(|ticket| {
                filter.passes(&ticket.order) && filter.passes_time(ticket.order.accepted_at)
            }));
        }
        tickets.sort_by_key(|ticket| ticket.order.id);
        if let Some(limit) = filter.limit {
            tickets.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        Ok(tickets)
    }

    /// Settles the orders that have a row by now, and publishes the others.
    async fn replay_tickets(&mut self, tickets: &[Ticket]) -> Result<(), ReplayError> {
        let ids: Vec<_> = tickets.iter().map(|ticket| ticket.order.id).collect();
        let rows = rows::read(&self.replay.store, &ids).await?;
        let mut orders = Vec::new();
        for ticket in tickets {
            match rows.get(&ticket.order.id) {
                Some(row) => {
                    count_row(&mut self.report.counts, row.status);
                    if self.run.is_some() {
                        self.settle(row).await;
                    }
                }
                None if ticket.parked => self.report.counts.parked += 1,
                None => orders.push(&ticket.order),
            }
        }
        match self.run {
            Some(_) => self.publish(&orders).await,
            None => self.report.counts.inserted += orders.len() as u64,
        }
        Ok(())
    }

    /// If this fails, the sweep settles the order.
    async fn settle(&self, row: &OrderRow) {
        let Replay { gate, store, leases, .. } = self.replay;
        let _ = Settler { gate, store, leases }.settle_order(&row.order, row.failure).await;
    }

    async fn publish(&mut self, orders: &[&Order]) {
        let publisher = &self.replay.publisher;
        let publishing = orders.iter().map(|order| publisher.publish(std::slice::from_ref(*order)));
        let published = futures_util::future::join_all(publishing).await;
        for (order, mut published) in orders.iter().zip(published) {
            // The publisher's window was full; a single order fits.
            if published == Err(PublishError::Away) && publisher.is_up() {
                published = publisher.publish(std::slice::from_ref(*order)).await;
            }
            match published {
                Ok(()) => {
                    self.report.counts.inserted += 1;
                    // If this fails, the sweep publishes the order once more.
                    let _ = self.replay.gate.mark_confirmed(&order.sale, &[order.id]).await;
                }
                Err(error) => {
                    self.report.counts.refused += 1;
                    self.report.trouble(format!("{}: {error}", order.id));
                }
            }
        }
    }
}
