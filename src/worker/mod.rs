//! From deliveries to rows. The only place that acknowledges a message, and it does so after
//! COMMIT: whatever dies before leaves the message with the broker.
//!
//! The order of steps is the promise: lease, transaction, ack, release, settle. A lease released
//! before COMMIT would let another worker in too early; an order settled before COMMIT would be
//! nowhere for a moment.

mod batch;
mod outcome;
mod poison;

use std::time::Duration;

use rand::seq::SliceRandom as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::outcome::WorkerError;
use crate::fault::fault;
use crate::gate::Gate;
use crate::lease::Leases;
use crate::link::Backoff;
use crate::queue::{Consumer, Delivery, Letters};
use crate::store::{Store, StoreError};

#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Deliveries in one batch, at most.
    pub batch: usize,
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

/// How long a held delivery, or one that nobody can take now, waits for the next try.
const HELD: Duration = Duration::from_millis(20);

pub struct Worker {
    pub gate: Gate,
    pub leases: Leases,
    pub store: Store,
    pub letters: Letters,
    pub settings: WorkerSettings,
}

/// The database or Redis has been away for so long that the deliveries go back.
struct Outage;

impl Worker {
    /// Runs until `stop`; then finishes the batch in hand, and hands the rest back to the broker
    /// by closing the connection. Trouble of any kind is waited out.
    pub async fn run(self, mut consumer: Consumer, stop: CancellationToken) {
        let mut held: Vec<Delivery> = Vec::new();
        loop {
            let most = self.settings.batch.saturating_sub(held.len()).max(1);
            // A held delivery must not wait for the next buyer.
            let patience = if held.is_empty() { Duration::MAX } else { HELD };
            fault!("delivery.before", consumer.close().await);
            let next = consumer.next_batch_within(most, self.settings.linger, patience);
            let Some(next) = stop.run_until_cancelled(next).await else { break };
            held.extend(next);
            if !held.is_empty() {
                fault!("delivery.after", {
                    consumer.close().await;
                    held.clear();
                });
            }
            held = match self.process(std::mem::take(&mut held), &stop).await {
                Ok(held) => held,
                Err(Outage) => {
                    tracing::warn!(
                        "worker consumes no more until database and redis answer; the queue holds"
                    );
                    consumer.close().await;
                    self.until_over(&stop).await;
                    Vec::new()
                }
            };
        }
        if held.is_empty() {
            tracing::info!("worker stops with nothing in hand");
        } else {
            tracing::info!(deliveries = held.len(), "worker stops; these go back to the broker");
        }
        consumer.close().await;
    }

    /// Takes deliveries to their end; returns those that must be tried again: their user's lease was
    /// busy, the dead-letter queue did not take them, or it is time to stop.
    async fn process(
        &self,
        deliveries: Vec<Delivery>,
        stop: &CancellationToken,
    ) -> Result<Vec<Delivery>, Outage> {
        let (readable, mut held) = self.part_unreadable(deliveries).await;
        let (mut suspects, together): (Vec<_>, Vec<_>) =
            readable.into_iter().partition(|delivery| delivery.redeliveries >= SUSPECT_AFTER);
        held.extend(self.persist_until_done(together, stop).await?);
        // Those that were lent together have been given back as often: without shuffling the same one
        // would be first each time, and take those behind it along.
        suspects.shuffle(&mut rand::rng());
        suspects.sort_by_key(|delivery| delivery.redeliveries);
        for suspect in suspects {
            held.extend(self.persist_until_done(vec![suspect], stop).await?);
        }
        Ok(held)
    }

    /// While the database or Redis is away it waits: an outage is not the message's fault, and no
    /// attempt is counted.
    async fn persist_until_done(
        &self,
        mut pending: Vec<Delivery>,
        stop: &CancellationToken,
    ) -> Result<Vec<Delivery>, Outage> {
        if pending.is_empty() {
            return Ok(pending);
        }
        let mut backoff = Backoff::default();
        let mut since: Option<Instant> = None;
        loop {
            match self.persist(&pending).await {
                Ok(done) => {
                    let mut done = done.into_iter();
                    pending.retain(|_| !done.next().unwrap_or(false));
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
