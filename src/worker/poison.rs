//! What no repetition will mend: it goes to the dead-letter queue with an account of what was
//! tried, so that it holds up nobody and somebody can end it.

use tokio_util::sync::CancellationToken;

use super::Worker;
use super::outcome::WorkerError;
use crate::link::Backoff;
use crate::queue::{Delivery, Reason, Trouble};
use crate::store::StoreError;

/// Times that a delivery is tried alone before it is parked.
const TRIES: u64 = 4;

impl Worker {
    /// Finds the delivery that no repetition will mend, so that it does not take its batch along.
    /// Returns those that must be tried again.
    pub(super) async fn one_by_one(
        &self,
        deliveries: Vec<Delivery>,
        stop: &CancellationToken,
    ) -> Vec<Delivery> {
        let mut held = Vec::new();
        let mut deliveries = deliveries.into_iter();
        while let Some(delivery) = deliveries.next() {
            if stop.is_cancelled() {
                held.push(delivery);
                break;
            }
            let mut backoff = Backoff::default();
            let mut trouble: Option<Trouble> = None;
            loop {
                match self.persist(std::slice::from_ref(&delivery)).await {
                    Ok(done) if done == [true] => break,
                    Err(WorkerError::Store(StoreError::Broken(why))) => {
                        let trouble = trouble.get_or_insert_with(|| Trouble {
                            reason: Reason::Broken,
                            attempts: 0,
                            first_error: why.clone(),
                            last_error: String::new(),
                        });
                        trouble.attempts += 1;
                        trouble.last_error = why;
                        if trouble.attempts < TRIES {
                            tokio::time::sleep(backoff.delay()).await;
                            continue;
                        }
                        if !self.park(&delivery, trouble).await {
                            held.push(delivery);
                        }
                        break;
                    }
                    // The user's lease is busy.
                    Ok(_) => {
                        held.push(delivery);
                        break;
                    }
                    Err(_) => {
                        held.push(delivery);
                        // In an outage the others would fare no better, each for as long.
                        if !self.servers_answer().await {
                            held.extend(deliveries);
                            return held;
                        }
                        break;
                    }
                }
            }
        }
        held.extend(deliveries);
        held
    }

    /// Parts what can be read from what goes to the dead-letter queue at once; the second are those
    /// that it did not take.
    pub(super) async fn part_unreadable(&self, deliveries: Vec<Delivery>) -> (Vec<Delivery>, Vec<Delivery>) {
        let (mut readable, mut held) = (Vec::with_capacity(deliveries.len()), Vec::new());
        for delivery in deliveries {
            let Err(why) = &delivery.orders else {
                readable.push(delivery);
                continue;
            };
            let why = why.to_string();
            let trouble = Trouble {
                reason: Reason::Unreadable,
                attempts: 1,
                first_error: why.clone(),
                last_error: why,
            };
            if !self.park(&delivery, &trouble).await {
                held.push(delivery);
            }
        }
        (readable, held)
    }

    /// `false` where the dead-letter queue did not take it. In this order: the mark, so that the
    /// sweep does not send it round again, and before anybody can end the letter; the letter; the
    /// ack. A crash in between leaves the message with the broker.
    async fn park(&self, delivery: &Delivery, trouble: &Trouble) -> bool {
        for order in delivery.orders.iter().flatten() {
            // Where this fails, whoever leads the sweep finds the letter and marks it.
            let _ = self.gate.parked(&order.sale, &[order.id]).await;
        }
        if let Err(error) = self.letters.write(delivery, trouble).await {
            tracing::warn!(%error, "a dead letter could not be written; the message is held");
            return false;
        }
        metrics::counter!("worker_dead_letters_total", "reason" => trouble.reason.to_string()).increment(1);
        if let Err(why) = &delivery.orders {
            tracing::error!(%why, "unreadable message goes to the dead-letter queue");
        }
        for order in delivery.orders.iter().flatten() {
            tracing::error!(order_id = %order.id, why = trouble.last_error, "order goes to the dead-letter queue");
        }
        if !delivery.ack().await {
            // The channel is gone: the message comes again, and is parked once more.
            metrics::counter!("worker_late_acks_total").increment(1);
        }
        true
    }
}
