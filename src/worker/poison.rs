//! What no repetition will mend: it goes to the dead-letter queue with an account of what was
//! tried, so that it holds up nobody and somebody can end it.

use tokio_util::sync::CancellationToken;

use super::pending::PendingDelivery;
use super::{Worker, WorkerError};
use crate::domain::Order;
use crate::link::Backoff;
use crate::queue::{Delivery, Reason, Rejection};
use crate::store::StoreError;

/// Times that an order is tried alone before it is parked.
const TRIES: u64 = 4;

/// What became of one order that was tried alone.
enum Alone {
    /// It has an outcome, or a dead letter.
    Done,
    /// Its user's lease is busy, the dead-letter queue did not take it, or it is time to stop.
    Held,
    /// In an outage the others would fare no better, each for as long.
    Outage,
}

impl Worker {
    /// Finds the order that no repetition will mend, so that it does not take its batch along.
    /// Returns what must be tried again.
    pub(super) async fn one_by_one(
        &self,
        hands: Vec<PendingDelivery>,
        stop: &CancellationToken,
    ) -> Vec<PendingDelivery> {
        let mut held = Vec::new();
        let mut outage = false;
        for mut hand in hands {
            let orders = std::mem::take(&mut hand.orders);
            let mut left = Vec::new();
            let later = hand.later;
            let all = orders.len();
            for (nth, order) in orders.into_iter().enumerate() {
                if outage || stop.is_cancelled() {
                    left.push(order);
                    continue;
                }
                hand.orders.push(order);
                hand.later = later + left.len() + all - nth - 1;
                match self.alone(&mut hand).await {
                    Alone::Done => {}
                    Alone::Held => left.append(&mut hand.orders),
                    Alone::Outage => {
                        outage = true;
                        left.append(&mut hand.orders);
                    }
                }
            }
            if !left.is_empty() || later > 0 {
                (hand.orders, hand.later) = (left, later);
                held.push(hand);
            }
        }
        held
    }

    async fn alone(&self, hand: &mut PendingDelivery) -> Alone {
        let mut backoff = Backoff::default();
        let mut rejection: Option<Rejection> = None;
        loop {
            match self.persist(std::slice::from_mut(hand)).await {
                Ok(()) if hand.orders.is_empty() => return Alone::Done,
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
                    return if self.park(hand, rejection).await { Alone::Done } else { Alone::Held };
                }
                Err(_) if !self.servers_answer().await => return Alone::Outage,
                Err(_) => return Alone::Held,
            }
        }
    }

    /// `false` where the dead-letter queue did not take it. In this order: the mark, so that the
    /// sweep does not send it round again, and before anybody can end the letter; the letter; the
    /// ack, where no order of the message is left. A crash in between leaves the message with the broker.
    async fn park(&self, hand: &mut PendingDelivery, rejection: &Rejection) -> bool {
        while let Some(order) = hand.orders.last() {
            // Where this fails, whoever leads the sweep finds the letter and marks it.
            let _ = self.gate.mark_parked(&order.sale, &[order.id]).await;
            if !self.write_dead_letter(&hand.delivery, Some(order), rejection).await {
                return false;
            }
            tracing::error!(order_id = %order.id, why = rejection.last_error, "order goes to the dead-letter queue");
            hand.orders.pop();
        }
        if hand.is_done() {
            hand.acknowledge().await;
        }
        true
    }

    /// Parts what can be read from what goes to the dead-letter queue at once; the second are those
    /// that it did not take, to be held and tried again.
    pub(super) async fn split_unreadable(
        &self,
        deliveries: Vec<Delivery>,
    ) -> (Vec<PendingDelivery>, Vec<Delivery>) {
        let (mut readable, mut held) = (Vec::with_capacity(deliveries.len()), Vec::new());
        for delivery in deliveries {
            let Err(why) = &delivery.orders else {
                readable.push(PendingDelivery::new(delivery));
                continue;
            };
            let why = why.to_string();
            let rejection = Rejection {
                reason: Reason::Unreadable,
                attempts: 1,
                first_error: why.clone(),
                last_error: why.clone(),
            };
            if !self.write_dead_letter(&delivery, None, &rejection).await {
                held.push(delivery);
                continue;
            }
            tracing::error!(why, "unreadable message goes to the dead-letter queue");
            if !delivery.ack().await {
                metrics::counter!("worker_late_acks_total").increment(1);
            }
        }
        (readable, held)
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
        metrics::counter!("worker_dead_letters_total", "reason" => rejection.reason.to_string()).increment(1);
        true
    }
}
