//! What a worker has in hand: a message, and those of its orders that have no committed outcome yet. A
//! message may carry many orders, and what happens to one of them must not happen to the others.

use crate::domain::Order;
use crate::queue::Delivery;

pub(super) struct PendingDelivery {
    pub(super) delivery: Delivery,
    /// Those that the next try persists.
    pub(super) orders: Vec<Order>,
    /// How many of the message's orders are left for tries after that.
    pub(super) later: usize,
}

impl PendingDelivery {
    /// Of a message that can be read.
    pub(super) fn new(mut delivery: Delivery) -> Self {
        let orders = delivery.orders.as_mut().map(std::mem::take).unwrap_or_default();
        Self { delivery, orders, later: 0 }
    }

    /// Every order of the message has an outcome: it may be acknowledged.
    pub(super) fn is_done(&self) -> bool {
        self.orders.is_empty() && self.later == 0
    }

    pub(super) async fn acknowledge(&self) {
        if !self.delivery.ack().await {
            // The channel is gone: the message comes again, and will be recognised.
            metrics::counter!("worker_late_acks_total").increment(1);
        }
    }
}

/// Orders in hand: what a transaction is measured by.
pub(super) fn orders_in(hands: &[PendingDelivery]) -> usize {
    hands.iter().map(|hand| hand.orders.len()).sum()
}
