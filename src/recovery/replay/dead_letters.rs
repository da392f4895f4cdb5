//! Replays orders from the dead-letter queue: they are published again, a limited number of times.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::error::ReplayError;
use super::rows::{self, count_row};
use super::work::Work;
use crate::control::{DeadLetterActs, DeadLetterError};
use crate::domain::{Order, SaleId};
use crate::queue::DeadLetter;

/// How long connecting to the broker may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// At most this many dead letters are read.
const DEAD_LETTERS: usize = 100_000;

impl Work<'_> {
    pub(super) async fn dead_letters(&mut self) -> Result<(), ReplayError> {
        let Some(letters) = self.list_dead_letters().await? else { return Ok(()) };
        let orders = || letters.iter().flat_map(|letter| letter.orders.iter().flatten());
        self.require_sale(orders().map(|order| &order.sale)).await?;
        let total = letters.len() as u64;
        let sales: BTreeSet<SaleId> = orders().map(|order| order.sale.clone()).collect();
        self.begin(sales, total).await?;
        let replay = self.replay;
        let acts =
            DeadLetterActs::new(replay.dead_letters.clone(), replay.gate.clone(), replay.store.clone());
        let mut seen = BTreeSet::new();
        // The same order may be on the queue twice.
        for letter in letters.iter().filter(|letter| seen.insert(&letter.id)) {
            if !self.room_in_the_queue(1).await? {
                break;
            }
            let began = Instant::now();
            let replayed = self.replay_dead_letter(&acts, letter).await?;
            if replayed && !self.after_batch(1, total, began.elapsed()).await? {
                break;
            }
        }
        Ok(())
    }

    /// The dead letters that pass the filter. `None`: it is time to stop.
    async fn list_dead_letters(&self) -> Result<Option<Vec<DeadLetter>>, ReplayError> {
        let (filter, dead_letters) = (&self.request.filter, &self.replay.dead_letters);
        if self.run.is_some() {
            let up = tokio::time::timeout(CONNECT_TIMEOUT, dead_letters.wait_until_up());
            let away = "the dead-letter queue: the broker could not be reached";
            up.await.map_err(|_| ReplayError::Usage(away.into()))?;
        }
        let listed = self.retrying(async || Ok(dead_letters.list(DEAD_LETTERS).await?)).await?;
        let Some(mut letters) = listed else { return Ok(None) };
        let by_order = filter.sale.is_some() || filter.user.is_some() || filter.order.is_some();
        letters.retain(|letter| {
            let orders = letter.orders.as_deref().unwrap_or_default();
            filter.reason.as_ref().is_none_or(|reason| *reason == letter.reason.to_string())
                && letter.since.is_none_or(|since| filter.passes_time(since))
                && (!by_order || orders.iter().any(|order| filter.passes(order)))
        });
        if let Some(limit) = filter.limit {
            letters.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        Ok(Some(letters))
    }

    /// `false`: it stays on the queue, and the report gives the reason.
    async fn replay_dead_letter(
        &mut self,
        acts: &DeadLetterActs,
        letter: &DeadLetter,
    ) -> Result<bool, ReplayError> {
        match &letter.orders {
            Err(why) => {
                self.report.counts.malformed += 1;
                self.report.trouble(format!("{}: {why}", letter.id));
                Ok(false)
            }
            Ok(_) if letter.replays >= self.request.max_replays => {
                self.report.counts.quarantined += 1;
                self.report.trouble(format!(
                    "{}: replayed {} times, and came back: end it with `doorbuster dead-letters fail`",
                    letter.id, letter.replays
                ));
                Ok(false)
            }
            Ok(orders) => self.replay_orders(acts, letter, orders).await,
        }
    }

    async fn replay_orders(
        &mut self,
        acts: &DeadLetterActs,
        letter: &DeadLetter,
        orders: &[Order],
    ) -> Result<bool, ReplayError> {
        let ids: Vec<_> = orders.iter().map(|order| order.id).collect();
        let rows = rows::read(&self.replay.store, &ids).await?;
        if self.run.is_some() {
            match acts.publish_again(&letter.id).await {
                Ok(_) => {}
                // Another process holds the queue, or has removed this dead letter meanwhile.
                Err(DeadLetterError::NotFound(id)) => {
                    self.report.counts.busy += 1;
                    self.report.trouble(format!("{id}: another process is working on it"));
                    return Ok(false);
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
        Ok(true)
    }
}
