//! From deliveries to rows. The only place that acknowledges a message, and it does so after
//! COMMIT: whatever dies before leaves the message with the broker.
//!
//! The order of steps is the promise: lease, transaction, ack, release, settle. A lease released
//! before COMMIT would let another worker in too early; an order settled before COMMIT would be
//! nowhere for a moment.

mod batch;
mod outcome;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use self::outcome::WorkerError;
use crate::gate::Gate;
use crate::lease::Leases;
use crate::link::Backoff;
use crate::queue::{Consumer, Delivery};
use crate::store::{Store, StoreError};

#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Deliveries in one batch, at most.
    pub batch: usize,
    /// How long a batch waits for more deliveries after its first.
    pub linger: Duration,
    /// How long a user's lease lasts: a killed worker's users are free after that.
    pub lease: Duration,
}

/// Times that a delivery is tried alone before it is parked.
const POISON_TRIES: u32 = 3;

pub struct Worker {
    pub gate: Gate,
    pub leases: Leases,
    pub store: Store,
    pub settings: WorkerSettings,
}

impl Worker {
    /// Runs until `stop`; then finishes the batch in hand, and hands the rest back to the broker
    /// by closing the connection. Trouble of any kind is waited out.
    pub async fn run(self, mut consumer: Consumer, stop: CancellationToken) {
        let mut held: Vec<Delivery> = Vec::new();
        loop {
            let most = self.settings.batch.saturating_sub(held.len()).max(1);
            // A held delivery must not wait for the next buyer.
            let patience = if held.is_empty() { Duration::MAX } else { Duration::from_millis(20) };
            let next = consumer.next_batch_within(most, self.settings.linger, patience);
            let Some(next) = stop.run_until_cancelled(next).await else { break };
            held.extend(next);
            held = self.process(std::mem::take(&mut held), &stop).await;
        }
        if !held.is_empty() {
            tracing::info!(deliveries = held.len(), "worker stops; these go back to the broker");
        }
        consumer.close().await;
    }

    /// Takes deliveries to their end; returns those that must be tried again, because their user's
    /// lease was busy. While the database or Redis is away it waits: an outage is not the
    /// message's fault, and no attempt is counted.
    async fn process(&self, deliveries: Vec<Delivery>, stop: &CancellationToken) -> Vec<Delivery> {
        let mut backoff = Backoff::default();
        let mut pending = self.dead_letter_unreadable(deliveries).await;
        loop {
            match self.persist(&pending).await {
                Ok(done) => {
                    let mut held = Vec::new();
                    for (delivery, done) in pending.drain(..).zip(done) {
                        if !done {
                            held.push(delivery);
                        }
                    }
                    return held;
                }
                Err(WorkerError::Store(StoreError::Broken(why))) => {
                    tracing::error!(
                        why,
                        deliveries = pending.len(),
                        "a batch cannot be persisted; trying one by one"
                    );
                    return self.one_by_one(pending).await;
                }
                Err(error) => {
                    if backoff.tries() == 0 {
                        tracing::warn!(%error, deliveries = pending.len(), "worker waits");
                    }
                    metrics::counter!("worker_waits_total").increment(1);
                    let pause = tokio::time::sleep(backoff.delay());
                    if stop.run_until_cancelled(pause).await.is_none() {
                        return pending;
                    }
                }
            }
        }
    }

    /// Finds the delivery that no repetition will mend, so that it does not take its batch along.
    async fn one_by_one(&self, deliveries: Vec<Delivery>) -> Vec<Delivery> {
        let mut held = Vec::new();
        for delivery in deliveries {
            let mut backoff = Backoff::default();
            loop {
                match self.persist(std::slice::from_ref(&delivery)).await {
                    Ok(done) if done == [true] => break,
                    Err(WorkerError::Store(StoreError::Broken(why))) => {
                        if backoff.tries() < POISON_TRIES {
                            tokio::time::sleep(backoff.delay()).await;
                            continue;
                        }
                        self.park(&delivery, &why).await;
                        break;
                    }
                    // Busy, or an outage: not the message's fault.
                    Ok(_) | Err(_) => {
                        held.push(delivery);
                        break;
                    }
                }
            }
        }
        held
    }

    /// The dead-letter queue first: an entry that is marked and a message that is not there would
    /// be an order that nobody looks for.
    async fn park(&self, delivery: &Delivery, why: &str) {
        metrics::counter!("worker_dead_letters_total", "reason" => "broken").increment(1);
        let parked = delivery.dead_letter().await;
        for order in delivery.orders.iter().flatten() {
            tracing::error!(order_id = %order.id, why, parked, "order goes to the dead-letter queue");
            if parked {
                let _ = self.gate.parked(&order.sale, &[order.id]).await;
            }
        }
    }

    async fn dead_letter_unreadable(&self, deliveries: Vec<Delivery>) -> Vec<Delivery> {
        let mut readable = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            match &delivery.orders {
                Ok(_) => readable.push(delivery),
                Err(error) => {
                    tracing::error!(%error, "unreadable message goes to the dead-letter queue");
                    metrics::counter!("worker_dead_letters_total", "reason" => "unreadable").increment(1);
                    delivery.dead_letter().await;
                }
            }
        }
        readable
    }
}
