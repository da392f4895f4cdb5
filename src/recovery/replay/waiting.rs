//! Orders that were accepted and have no row: from the outbox, or from the dead-letter queue.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::rows::{self, count_row};
use super::{ReplayError, Work};
use crate::control::{DeadLetterActs, DeadLetterError};
use crate::domain::{SaleId, Ticket};
use crate::queue::PublishError;
use crate::settlement::settlement_of;

/// Orders that are published at once.
const BATCH: usize = 500;

/// How often to look whether the queue has room again.
const LOOK: Duration = Duration::from_millis(500);

/// How old the depth of the queue may be that the broker told last.
const DEPTH_AGE: Duration = Duration::from_secs(6);

/// How long the broker may take to be reached.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Dead letters that are looked at.
const LETTERS: usize = 100_000;

impl Work<'_> {
    pub(super) async fn outbox(&mut self) -> Result<(), ReplayError> {
        let filter = &self.asked.filter;
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
            tickets.extend(
                held.filter(|ticket| {
                    filter.takes(&ticket.order) && filter.takes_time(ticket.order.accepted_at)
                }),
            );
        }
        tickets.sort_by_key(|ticket| ticket.order.id);
        if let Some(limit) = filter.limit {
            tickets.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        let total = tickets.len() as u64;
        let touched: BTreeSet<SaleId> = tickets.iter().map(|ticket| ticket.order.sale.clone()).collect();
        self.begin(touched, total).await?;
        let most =
            self.asked.rate.map_or(BATCH, |rate| usize::try_from(rate).unwrap_or(BATCH).clamp(1, BATCH));
        for tickets in tickets.chunks(most) {
            if !self.room_in_the_queue(tickets.len()).await? {
                break;
            }
            let began = Instant::now();
            self.publish(tickets).await?;
            if !self.next(tickets.len() as u64, total, began.elapsed()).await? {
                break;
            }
        }
        Ok(())
    }

    async fn publish(&mut self, tickets: &[Ticket]) -> Result<(), ReplayError> {
        let ids: Vec<_> = tickets.iter().map(|ticket| ticket.order.id).collect();
        let rows = rows::read(&self.replay.store, &ids).await?;
        let mut sent = Vec::new();
        for ticket in tickets {
            match rows.get(&ticket.order.id) {
                Some(row) => {
                    count_row(&mut self.report.counts, row.status);
                    if self.run.is_some() {
                        let settlement = settlement_of(&self.replay.store, &row.order, row.failure).await?;
                        // Else left to the sweep.
                        let _ = self.replay.gate.settle(&row.order.sale, &[settlement]).await;
                    }
                }
                None if ticket.parked => self.report.counts.parked += 1,
                None => sent.push(&ticket.order),
            }
        }
        if self.run.is_none() {
            self.report.counts.inserted += sent.len() as u64;
            return Ok(());
        }
        let publishing = sent.iter().map(|order| self.replay.publisher.publish(std::slice::from_ref(*order)));
        for (order, mut published) in sent.iter().zip(futures_util::future::join_all(publishing).await) {
            // The window was full: alone it finds room.
            if published == Err(PublishError::Away) && self.replay.publisher.is_up() {
                published = self.replay.publisher.publish(std::slice::from_ref(*order)).await;
            }
            match published {
                Ok(()) => {
                    self.report.counts.inserted += 1;
                    // Else the sweep publishes it once more.
                    let _ = self.replay.gate.mark_confirmed(&order.sale, &[order.id]).await;
                }
                Err(error) => {
                    self.report.counts.refused += 1;
                    self.report.trouble(format!("{}: {error}", order.id));
                }
            }
        }
        Ok(())
    }

    /// Waits while more orders wait in the queue than it may hold. `false`: it is time to stop.
    async fn room_in_the_queue(&mut self, about_to: usize) -> Result<bool, ReplayError> {
        let mut said = false;
        while self.run.is_some() && !self.stop.is_cancelled() {
            // The depth is as old as some seconds: what was published since is not in it.
            self.published.retain(|(at, _)| at.elapsed() < DEPTH_AGE);
            let since: u64 = self.published.iter().map(|(_, orders)| orders).sum();
            let depth = self.replay.publisher.depths().map(|depths| u64::from(depths.orders) + since);
            match depth {
                Some(depth) if depth <= u64::from(self.asked.max_queue) => {
                    self.published.push_back((Instant::now(), about_to as u64));
                    break;
                }
                Some(depth) if !std::mem::replace(&mut said, true) => {
                    (self.progress.say)(&format!("about {depth} orders wait in the queue: waiting for it"));
                }
                None if !std::mem::replace(&mut said, true) => {
                    (self.progress.say)("the broker is away: waiting for it");
                }
                _ => {}
            }
            self.pause(LOOK).await?;
        }
        Ok(!self.stop.is_cancelled())
    }

    pub(super) async fn dead_letters(&mut self) -> Result<(), ReplayError> {
        let (asked, filter) = (self.asked, &self.asked.filter);
        let replay = self.replay;
        let dead =
            DeadLetterActs::new(replay.dead_letters.clone(), replay.gate.clone(), replay.store.clone());
        if self.run.is_some() {
            let up = tokio::time::timeout(CONNECT_WITHIN, replay.dead_letters.wait_until_up());
            let away = "the dead-letter queue: the broker could not be reached";
            up.await.map_err(|_| ReplayError::Usage(away.into()))?;
        }
        let letters = self.patiently(async || Ok(replay.dead_letters.list(LETTERS).await?)).await?;
        let Some(mut letters) = letters else { return Ok(()) };
        letters.retain(|letter| {
            let orders = letter.orders.as_deref().unwrap_or_default();
            let by_order = filter.sale.is_some() || filter.user.is_some() || filter.order.is_some();
            filter.reason.as_ref().is_none_or(|reason| *reason == letter.reason.to_string())
                && letter.since.is_none_or(|since| filter.takes_time(since))
                && (!by_order || orders.iter().any(|order| filter.takes(order)))
        });
        if let Some(limit) = filter.limit {
            letters.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        let total = letters.len() as u64;
        self.knows_the_sale(
            letters.iter().flat_map(|letter| letter.orders.iter().flatten()).map(|order| &order.sale),
        )
        .await?;
        let orders = || letters.iter().flat_map(|letter| letter.orders.iter().flatten());
        self.begin(orders().map(|order| order.sale.clone()).collect(), total).await?;
        let mut seen = BTreeSet::new();
        for letter in &letters {
            // One may lie there twice.
            if !seen.insert(&letter.id) {
                continue;
            }
            if !self.room_in_the_queue(1).await? {
                break;
            }
            let began = Instant::now();
            match &letter.orders {
                Err(why) => {
                    self.report.counts.malformed += 1;
                    self.report.trouble(format!("{}: {why}", letter.id));
                    continue;
                }
                Ok(_) if letter.replays >= asked.max_replays => {
                    self.report.counts.quarantined += 1;
                    let times = letter.replays;
                    self.report.trouble(format!(
                        "{}: replayed {times} times, and came back: end it with `doorbuster dead-letters fail`",
                        letter.id
                    ));
                    continue;
                }
                Ok(orders) => {
                    let ids: Vec<_> = orders.iter().map(|order| order.id).collect();
                    let rows = rows::read(&self.replay.store, &ids).await?;
                    if self.run.is_some() {
                        match dead.replay(&letter.id).await {
                            Ok(_) => {}
                            // Somebody holds the queue, or has ended it meanwhile.
                            Err(DeadLetterError::NotFound(id)) => {
                                self.report.counts.busy += 1;
                                self.report.trouble(format!("{id}: it is in somebody else's hands"));
                                continue;
                            }
                            Err(error) => return Err(error.into()),
                        }
                    }
                    for order in orders {
                        match rows.get(&order.id) {
                            Some(row) => count_row(&mut self.report.counts, row.status),
                            None => self.report.counts.inserted += 1,
                        }
                    }
                }
            }
            if !self.next(1, total, began.elapsed()).await? {
                break;
            }
        }
        Ok(())
    }
}
