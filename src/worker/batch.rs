//! Works on a batch until it is done: tries suspects alone, waits out outages, and leaves the rest for the next batch.

use rand::seq::SliceRandom as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pending::PendingDelivery;
use super::{Outage, Worker, WorkerError};
use crate::link::Backoff;
use crate::settlement::{SettlementError, compare_places};
use crate::store::StoreError;

/// A message with this many redeliveries is processed alone, after all others: it may have crashed the workers that had
/// it. One redelivery is no sign of that, since every restart of the broker or of a worker gives back all
/// unacknowledged messages.
const SUSPECT_AFTER: u64 = 2;

/// With this many redeliveries, each order of the message is processed alone.
const APART_AFTER: u64 = 3;

impl Worker {
    /// Processes a batch. Returns the deliveries that must be retried: a user's lease was busy, the dead-letter queue
    /// did not take an order, or it is time to stop.
    pub(super) async fn process(
        &self,
        batch: Vec<PendingDelivery>,
        stop: &CancellationToken,
    ) -> Result<Vec<PendingDelivery>, Outage> {
        let (mut suspects, together): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|pending| pending.delivery.redeliveries >= SUSPECT_AFTER);
        let mut held = self.persist_until_done(together, stop).await?;
        // Messages that were delivered together have the same number of redeliveries. Without shuffling, the same one
        // would come first each time and take those behind it down with it.
        suspects.shuffle(&mut rand::rng());
        suspects.sort_by_key(|pending| pending.delivery.redeliveries);
        for suspect in suspects {
            if stop.is_cancelled() {
                held.push(suspect);
            } else if suspect.delivery.redeliveries < APART_AFTER {
                held.extend(self.persist_until_done(vec![suspect], stop).await?);
            } else {
                held.extend(self.persist_apart(suspect, stop).await?);
            }
        }
        Ok(held)
    }

    /// Persists each order in a separate transaction. Returns the delivery if some must be retried.
    async fn persist_apart(
        &self,
        mut pending: PendingDelivery,
        stop: &CancellationToken,
    ) -> Result<Option<PendingDelivery>, Outage> {
        let mut orders = std::mem::take(&mut pending.orders);
        orders.shuffle(&mut rand::rng());
        let mut left = Vec::new();
        while let Some(order) = orders.pop() {
            pending.orders.push(order);
            pending.later = orders.len() + left.len();
            let begin = Instant::now();
            let Some(back) = self.persist_until_done(vec![pending], stop).await?.pop() else {
                return Ok(None);
            };
            pending = back;
            left.append(&mut pending.orders);
            // An outage that held up this order would hold up each of the others for as long.
            if stop.is_cancelled() || begin.elapsed() > self.settings.hold {
                left.append(&mut orders);
            }
        }
        (pending.orders, pending.later) = (left, 0);
        Ok(Some(pending))
    }

    /// Waits while the database or Redis is unavailable: an outage is not the message's fault, and no attempt is
    /// counted. Returns the deliveries that must be retried.
    async fn persist_until_done(
        &self,
        mut batch: Vec<PendingDelivery>,
        stop: &CancellationToken,
    ) -> Result<Vec<PendingDelivery>, Outage> {
        if batch.is_empty() {
            return Ok(batch);
        }
        let mut backoff = Backoff::default();
        let mut since: Option<Instant> = None;
        loop {
            match self.persist(&mut batch).await {
                Ok(()) => {
                    batch.retain(|pending| !pending.is_done());
                    return Ok(batch);
                }
                Err(WorkerError::Store(StoreError::Broken(why))) => {
                    tracing::error!(
                        why,
                        deliveries = batch.len(),
                        "a batch cannot be persisted; trying one by one"
                    );
                    return Ok(self.one_by_one(batch, stop).await);
                }
                Err(error) => {
                    let since = *since.get_or_insert_with(Instant::now);
                    if backoff.tries() == 0 {
                        tracing::warn!(%error, deliveries = batch.len(), "worker waits");
                    }
                    metrics::counter!("worker_waits_total").increment(1);
                    if since.elapsed() > self.settings.hold {
                        if !self.servers_answer().await {
                            return Err(Outage);
                        }
                        // Both answer and still refuse the batch: a full disk, a missing right, or one order among
                        // many. If the worker gave the batch back, it would be redelivered at once and counted. So it
                        // holds the batch and tries each order alone.
                        return Ok(self.one_by_one(batch, stop).await);
                    }
                    let pause = tokio::time::sleep(backoff.delay());
                    if stop.run_until_cancelled(pause).await.is_none() {
                        return Ok(batch);
                    }
                }
            }
        }
    }

    pub(super) async fn servers_answer(&self) -> bool {
        self.store.check().await.is_ok() && compare_places(&self.gate, &self.store).await.is_ok()
    }

    /// Whether the database is known to have lost commits.
    pub(super) async fn is_behind(&self) -> bool {
        let compared = compare_places(&self.gate, &self.store).await;
        matches!(compared, Err(SettlementError::Store(StoreError::Behind(_))))
    }

    /// Returns once database and Redis answer and the database lacks no commit that it confirmed, or at `stop`.
    pub(super) async fn wait_for_servers(&self, stop: &CancellationToken) {
        let mut backoff = Backoff::default();
        loop {
            if self.servers_answer().await {
                tracing::info!("database and redis answer again");
                return;
            }
            if stop.run_until_cancelled(tokio::time::sleep(backoff.delay())).await.is_none() {
                return;
            }
        }
    }
}
