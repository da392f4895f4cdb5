//! From deliveries to rows. The only place that acknowledges a message, and it does so after
//! COMMIT: whatever dies before leaves the message with the broker.
//!
//! The order of steps is the promise: lease, transaction, ack, release, settle. A lease released
//! before COMMIT would let another worker in too early; an order settled before COMMIT would be
//! nowhere for a moment.

mod batch;
mod pending;
mod poison;

use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom as _;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::pending::{PendingDelivery, orders_in};
use crate::fault::fault;
use crate::gate::Gate;
use crate::lease::{LeaseError, Leases};
use crate::link::Backoff;
use crate::queue::{Consumer, DeadLetters, Delivery};
use crate::store::{Store, StoreError};

/// Why a batch has to wait. Nothing was acknowledged.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerError {
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Orders in one transaction; one message may go beyond it.
    pub batch: usize,
    /// Batches under way at once: while one waits for its COMMIT, the next takes its leases. A database
    /// with one writer gets one.
    pub lanes: usize,
    /// How long a batch waits for more deliveries after its first.
    pub linger: Duration,
    /// How long a user's lease lasts: a killed worker's users are free after that.
    pub lease: Duration,
    /// How long an outage may last before this worker gives its deliveries back and takes no more
    /// until it is over.
    pub hold: Duration,
}

/// A message that was given back this often is processed alone, after all others: it may be what
/// ended the workers that had it. Once is no sign of that, since every restart of the broker or of
/// a worker gives back all that was lent.
const SUSPECT_AFTER: u64 = 2;

/// And this often, each of its orders alone.
const APART_AFTER: u64 = 3;

/// How long a held delivery, or one that nobody can take now, waits for the next try.
const HELD: Duration = Duration::from_millis(20);

/// How long is waited for a delivery while others are in hand: less than the second after which a consumer
/// asks itself whether it was forgotten.
const IN_HAND: Duration = Duration::from_millis(900);

pub struct Worker {
    pub gate: Gate,
    pub leases: Leases,
    pub store: Store,
    pub dead_letters: DeadLetters,
    pub settings: WorkerSettings,
}

/// The database or Redis has been away for so long that the deliveries go back.
struct Outage;

impl Worker {
    /// Runs until `stop`; then finishes the batches in hand, and hands the rest back to the broker
    /// by closing the connection. Rejection of any kind is waited out.
    pub async fn run(self, mut consumer: Consumer, stop: CancellationToken) {
        let worker = Arc::new(self);
        let most_lanes = worker.settings.lanes.min(worker.store.writers()).max(1);
        let mut lanes: JoinSet<Result<Vec<PendingDelivery>, Outage>> = JoinSet::new();
        let mut held: Vec<PendingDelivery> = Vec::new();
        // Of these not even a dead letter could be made so far.
        let mut unreadable: Vec<Delivery> = Vec::new();
        loop {
            let most = worker.settings.batch.saturating_sub(orders_in(&held)).max(1);
            // A held delivery must not wait for the next buyer.
            let nothing_waits = held.is_empty() && unreadable.is_empty();
            let patience = match (nothing_waits, lanes.is_empty()) {
                (false, _) => HELD,
                // A consumer that gets nothing for long connects anew; not while its deliveries are in hand.
                (true, false) => IN_HAND,
                (true, true) => Duration::MAX,
            };
            let free = lanes.len() < most_lanes;
            if free {
                fault!("delivery.before", consumer.close().await);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(ended) = lanes.join_next() => match joined(ended) {
                    Ok(left) => held.extend(left),
                    Err(Outage) => {
                        tracing::warn!(
                            "worker consumes no more until database and redis answer; the queue holds"
                        );
                        consumer.close().await;
                        // What they hold goes back with the connection.
                        while let Some(ended) = lanes.join_next().await {
                            let _ = joined(ended);
                        }
                        held.clear();
                        unreadable.clear();
                        worker.until_over(&stop).await;
                    }
                },
                next = consumer.next_batch_within(most, worker.settings.linger, patience), if free => {
                    unreadable.extend(next);
                    let (mut taken, left) = worker.split_unreadable(std::mem::take(&mut unreadable)).await;
                    unreadable = left;
                    taken.append(&mut held);
                    if taken.is_empty() {
                        continue;
                    }
                    fault!("delivery.after", {
                        consumer.close().await;
                        taken.clear();
                    });
                    let (worker, stop) = (worker.clone(), stop.clone());
                    lanes.spawn(async move { worker.process(taken, &stop).await });
                }
            }
        }
        while let Some(ended) = lanes.join_next().await {
            held.extend(joined(ended).unwrap_or_default());
        }
        if held.is_empty() {
            tracing::info!("worker stops with nothing in hand");
        } else {
            tracing::info!(deliveries = held.len(), "worker stops; these go back to the broker");
        }
        consumer.close().await;
    }

    /// Takes what is in hand to its end; returns what must be tried again: a user's lease was busy, the
    /// dead-letter queue did not take it, or it is time to stop.
    async fn process(
        &self,
        hands: Vec<PendingDelivery>,
        stop: &CancellationToken,
    ) -> Result<Vec<PendingDelivery>, Outage> {
        let (mut suspects, together): (Vec<_>, Vec<_>) =
            hands.into_iter().partition(|hand| hand.delivery.redeliveries >= SUSPECT_AFTER);
        let mut held = self.persist_until_done(together, stop).await?;
        // Those that were lent together have been given back as often: without shuffling the same one
        // would be first each time, and take those behind it along.
        suspects.shuffle(&mut rand::rng());
        suspects.sort_by_key(|hand| hand.delivery.redeliveries);
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

    /// Each order in a transaction of its own; returns what must be tried again.
    async fn persist_apart(
        &self,
        mut hand: PendingDelivery,
        stop: &CancellationToken,
    ) -> Result<Option<PendingDelivery>, Outage> {
        let mut orders = std::mem::take(&mut hand.orders);
        orders.shuffle(&mut rand::rng());
        let mut left = Vec::new();
        while let Some(order) = orders.pop() {
            hand.orders.push(order);
            hand.later = orders.len() + left.len();
            let begin = Instant::now();
            let Some(back) = self.persist_until_done(vec![hand], stop).await?.pop() else { return Ok(None) };
            hand = back;
            left.append(&mut hand.orders);
            // What held up this one holds up the others, each for as long.
            if stop.is_cancelled() || begin.elapsed() > self.settings.hold {
                left.append(&mut orders);
            }
        }
        (hand.orders, hand.later) = (left, 0);
        Ok(Some(hand))
    }

    /// While the database or Redis is away it waits: an outage is not the message's fault, and no
    /// attempt is counted.
    async fn persist_until_done(
        &self,
        mut pending: Vec<PendingDelivery>,
        stop: &CancellationToken,
    ) -> Result<Vec<PendingDelivery>, Outage> {
        if pending.is_empty() {
            return Ok(pending);
        }
        let mut backoff = Backoff::default();
        let mut since: Option<Instant> = None;
        loop {
            match self.persist(&mut pending).await {
                Ok(()) => {
                    pending.retain(|hand| !hand.is_done());
                    return Ok(pending);
                }
                Err(WorkerError::Store(StoreError::Broken(why))) => {
                    tracing::error!(
                        why,
                        deliveries = pending.len(),
                        "a batch cannot be persisted; trying one by one"
                    );
                    return Ok(self.one_by_one(pending, stop).await);
                }
                Err(error) => {
                    let since = *since.get_or_insert_with(Instant::now);
                    if backoff.tries() == 0 {
                        tracing::warn!(%error, deliveries = pending.len(), "worker waits");
                    }
                    metrics::counter!("worker_waits_total").increment(1);
                    if since.elapsed() > self.settings.hold {
                        if !self.servers_answer().await {
                            return Err(Outage);
                        }
                        // They answer, and yet refuse this: a full disk, a right that is missing, or
                        // one order among many. Given back, it would come again at once and be
                        // counted; so it is held, and the others are tried without it.
                        return Ok(self.one_by_one(pending, stop).await);
                    }
                    let pause = tokio::time::sleep(backoff.delay());
                    if stop.run_until_cancelled(pause).await.is_none() {
                        return Ok(pending);
                    }
                }
            }
        }
    }

    async fn servers_answer(&self) -> bool {
        self.store.check().await.is_ok() && self.gate.ping().await.is_ok()
    }

    /// Returns when database and Redis answer, or at `stop`.
    async fn until_over(&self, stop: &CancellationToken) {
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

/// A panic in a lane is one of the worker.
fn joined(
    ended: Result<Result<Vec<PendingDelivery>, Outage>, JoinError>,
) -> Result<Vec<PendingDelivery>, Outage> {
    match ended {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Ok(Vec::new()),
    }
}
