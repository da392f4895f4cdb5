//! Works on a batch until it is done: tries suspects alone, waits out outages, and leaves the rest for the next batch.

use std::collections::HashMap;

use rand::seq::SliceRandom as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pending::PendingDelivery;
use super::{Outage, Worker, WorkerError};
use crate::domain::OrderId;
use crate::link::Backoff;
use crate::settlement::{SettlementError, compare_places};
use crate::store::StoreError;

/// After this many tries without an end a message is processed alone, after all others: its worker may have crashed
/// because of it. What a worker merely held when it died is not suspected.
const SUSPECT_AFTER: u32 = 1;

/// After this many tries, each order of the message is processed alone.
const APART_AFTER: u32 = 2;

impl Worker {
    /// Processes a batch. Returns the deliveries that must be retried: a user's lease was busy, the dead-letter queue
    /// did not take an order (then the delivery is refused), or it is time to stop.
    pub(super) async fn process(
        &self,
        mut batch: Vec<PendingDelivery>,
        stop: &CancellationToken,
    ) -> Result<Vec<PendingDelivery>, Outage> {
        self.read_tries(&mut batch).await;
        let (mut suspects, together): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|pending| pending.tries >= SUSPECT_AFTER);
        let mut held = self.counted(together, stop).await?;
        // Without shuffling, the same one would come first each time and take those behind it down with it.
        suspects.shuffle(&mut rand::rng());
        suspects.sort_by_key(|pending| pending.tries);
        for suspect in suspects {
            if stop.is_cancelled() {
                held.push(suspect);
            } else {
                metrics::counter!("doorbuster_worker_suspects_total").increment(1);
                held.extend(self.counted(vec![suspect], stop).await?);
            }
        }
        Ok(held)
    }

    /// Reads how often each message was tried that was delivered before. If Redis cannot be reached, the attempt waits
    /// for it as well.
    async fn read_tries(&self, batch: &mut [PendingDelivery]) {
        let again: Vec<OrderId> = delivered_before(batch).map(|(message, _)| message).collect();
        if again.is_empty() {
            return;
        }
        let Ok(tries) = self.gate.tries(&again).await else { return };
        let tries: HashMap<OrderId, u32> = again.into_iter().zip(tries).collect();
        for pending in batch {
            pending.tries = pending.first.and_then(|first| tries.get(&first).copied()).unwrap_or_default();
        }
    }

    /// Persists messages, each order apart where a message is suspected so much. If the process dies meanwhile, the tries
    /// of those that were delivered before stay counted. What is left of them keeps its earlier tries: that a user's lease
    /// was busy does not clear a message.
    async fn counted(
        &self,
        mut batch: Vec<PendingDelivery>,
        stop: &CancellationToken,
    ) -> Result<Vec<PendingDelivery>, Outage> {
        // Usually none: nothing is added to the path of messages that are delivered once.
        let mut tried: Vec<(OrderId, u32)> = delivered_before(&batch).collect();
        let messages: Vec<OrderId> = tried.iter().map(|(message, _)| *message).collect();
        let _ = self.gate.begin_tries(&messages).await;
        let result: Result<Vec<PendingDelivery>, Outage> = match batch
            .pop_if(|pending| pending.tries >= APART_AFTER)
        {
            Some(suspect) => self.persist_apart(suspect, stop).await.map(|left| left.into_iter().collect()),
            None => self.persist_until_done(batch, stop).await,
        };
        if let Ok(left) = &result {
            for (message, earlier) in &mut tried {
                if !left.iter().any(|pending| pending.first == Some(*message)) {
                    *earlier = 0;
                }
            }
        }
        let _ = self.gate.end_tries(&tried).await;
        result
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
                    metrics::counter!("doorbuster_worker_waits_total").increment(1);
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

/// The messages that were delivered before, with their earlier tries.
fn delivered_before(batch: &[PendingDelivery]) -> impl Iterator<Item = (OrderId, u32)> {
    let again = batch.iter().filter(|pending| pending.delivery.redeliveries > 0);
    again.filter_map(|pending| Some((pending.first?, pending.tries)))
}
