//! Orders that no retry will persist. They go to the dead-letter queue with the errors of every attempt, so that they
//! hold up nobody and an operator can end them.

use tokio_util::sync::CancellationToken;

use super::pending::PendingDelivery;
use super::{Outage, Worker, WorkerError};
use crate::domain::Order;
use crate::link::Backoff;
use crate::queue::{Delivery, Reason, Rejection};
use crate::store::StoreError;

/// Attempts to persist an order alone before it is parked.
const TRIES: u64 = 4;

/// The result of trying one order alone.
enum Alone {
    /// It has an outcome, or a dead letter.
    Done,
    /// Its user's lease is busy: retry it soon.
    Held,
    /// The dead-letter queue did not take it.
    Refused,
    /// A server is unavailable: each of the other orders would wait just as long.
    Outage,
}

impl Worker {
    /// Tries each order alone, so that one that cannot be persisted does not hold up its batch. Returns the deliveries
    /// that must be retried.
    pub(super) async fn one_by_one(
        &self,
        batch: Vec<PendingDelivery>,
        stop: &CancellationToken,
    ) -> Vec<PendingDelivery> {
        let mut held = Vec::new();
        let mut outage = false;
        for mut pending in batch {
            let orders = std::mem::take(&mut pending.orders);
            let mut left = Vec::new();
            let later = pending.later;
            let (all, mut refused) = (orders.len(), 0);
            for (nth, order) in orders.into_iter().enumerate() {
                if outage || stop.is_cancelled() {
                    left.push(order);
                    continue;
                }
                pending.orders.push(order);
                pending.later = later + left.len() + all - nth - 1;
                match self.alone(&mut pending).await {
                    Alone::Done => {}
                    Alone::Held => left.append(&mut pending.orders),
                    Alone::Refused => {
                        refused += pending.orders.len();
                        left.append(&mut pending.orders);
                    }
                    Alone::Outage => {
                        outage = true;
                        left.append(&mut pending.orders);
                    }
                }
            }
            // What is left for another reason may go on soon, and then only the refused are left.
            pending.is_refused = refused > 0 && refused == left.len();
            (pending.orders, pending.later) = (left, later);
            if !pending.is_done() {
                held.push(pending);
            }
        }
        held
    }

    async fn alone(&self, pending: &mut PendingDelivery) -> Alone {
        let mut backoff = Backoff::default();
        let mut rejection: Option<Rejection> = None;
        loop {
            match self.persist(std::slice::from_mut(pending)).await {
                Ok(()) if pending.orders.is_empty() => return Alone::Done,
                Ok(()) => return Alone::Held,
                Err(WorkerError::Store(StoreError::Broken(why))) => {
                    let rejection = rejection.get_or_insert_with(|| Rejection {
                        reason: Reason::Broken,
                        attempts: 0,
                        first_error: why.clone(),
                        last_error: String::new(),
                    });
                    rejection.attempts += 1;
                    rejection.last_error = why;
                    if rejection.attempts < TRIES {
                        tokio::time::sleep(backoff.delay()).await;
                        continue;
                    }
                    return if self.park(pending, rejection).await { Alone::Done } else { Alone::Refused };
                }
                Err(_) if !self.servers_answer().await => return Alone::Outage,
                Err(_) => return Alone::Held,
            }
        }
    }

    /// Returns `false` if the dead-letter queue did not take an order. The order of steps: first the mark, so that
    /// the sweep does not publish the order again, and before anybody can end the dead letter; then the dead letter;
    /// last the ack, if no order of the message is left. A crash in between leaves the message with the broker.
    async fn park(&self, pending: &mut PendingDelivery, rejection: &Rejection) -> bool {
        while let Some(order) = pending.orders.last() {
            // If this fails, the leader of the sweep finds the dead letter and marks it.
            let _ = self.gate.mark_parked(&order.sale, &[order.id]).await;
            if !self.write_dead_letter(&pending.delivery, Some(order), rejection).await {
                return false;
            }
            tracing::error!(order_id = %order.id, why = rejection.last_error, "order goes to the dead-letter queue");
            pending.orders.pop();
        }
        if pending.is_done() {
            pending.acknowledge().await;
        }
        true
    }

    /// Tries refused deliveries again. Returns those that must be retried.
    pub(super) async fn try_refused(
        &self,
        batch: Vec<PendingDelivery>,
        stop: &CancellationToken,
    ) -> Result<Vec<PendingDelivery>, Outage> {
        let (mut left, mut readable) = (Vec::new(), Vec::new());
        for mut pending in batch {
            if pending.delivery.orders.is_ok() {
                readable.push(pending);
            } else if self.park_unreadable(&pending.delivery).await {
                pending.acknowledge().await;
            } else {
                pending.is_refused = true;
                left.push(pending);
            }
        }
        left.extend(self.process(readable, stop).await?);
        Ok(left)
    }

    async fn park_unreadable(&self, delivery: &Delivery) -> bool {
        let why = delivery.orders.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let rejection =
            Rejection { reason: Reason::Unreadable, attempts: 1, first_error: why.clone(), last_error: why };
        let is_parked = self.write_dead_letter(delivery, None, &rejection).await;
        if is_parked {
            tracing::error!(why = rejection.last_error, "unreadable message goes to the dead-letter queue");
        }
        is_parked
    }

    async fn write_dead_letter(
        &self,
        delivery: &Delivery,
        order: Option<&Order>,
        rejection: &Rejection,
    ) -> bool {
        if let Err(error) = self.dead_letters.write(delivery, order, rejection).await {
            tracing::warn!(%error, "a dead letter could not be written; the message is held");
            return false;
        }
        metrics::counter!("doorbuster_worker_dead_letters_total", "reason" => rejection.reason.to_string())
            .increment(1);
        true
    }
}
