//! A message that the worker has taken and not acknowledged, with those of its orders that have no committed outcome
//! yet. A message may carry many orders, and the outcome of one must not affect the others.

use std::ops::Add as _;

use crate::domain::{Order, OrderId, SaleId};
use crate::queue::{Amount, Delivery, Traces};
use crate::trace;

pub(super) struct PendingDelivery {
    pub(super) delivery: Delivery,
    /// Its first order, by which the tries of the message are counted.
    pub(super) first: Option<OrderId>,
    /// How often a worker began to persist it and came to no end.
    pub(super) tries: u32,
    /// The orders that the next attempt persists.
    pub(super) orders: Vec<Order>,
    /// The number of the message's orders that are left for later attempts.
    pub(super) later: usize,
    /// The places of its orders in their traces, if this process records any.
    pub(super) traces: Traces,
    /// Orders of sales that are set aside.
    pub(super) aside: Vec<Order>,
    /// Orders that could not be persisted just now, because another session holds a row of their sale.
    pub(super) locked: Vec<Order>,
    /// It can be neither persisted nor parked now.
    pub(super) is_refused: bool,
}

impl PendingDelivery {
    /// Takes the orders of a delivery. An unreadable one has none, and is refused until it is parked.
    pub(super) fn new(mut delivery: Delivery) -> Self {
        let orders = delivery.orders.as_mut().map(std::mem::take).unwrap_or_default();
        let first = orders.first().map(|order| order.id);
        let is_refused = delivery.orders.is_err();
        let traces = if trace::is_on() { delivery.traces() } else { Traces::new() };
        Self {
            delivery,
            first,
            tries: 0,
            orders,
            later: 0,
            traces,
            aside: Vec::new(),
            locked: Vec::new(),
            is_refused,
        }
    }

    /// Every order of the message has an outcome, so it may be acknowledged.
    pub(super) fn is_done(&self) -> bool {
        self.orders.is_empty() && self.later == 0 && self.aside.is_empty() && self.locked.is_empty()
    }

    /// All its orders without an outcome, except those of attempts under way.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Order> {
        self.orders.iter().chain(&self.aside).chain(&self.locked)
    }

    /// Leaves the orders of these sales out of the next attempts, and no others.
    pub(super) fn set_aside(&mut self, is_stalled: impl Fn(&SaleId) -> bool) {
        let on: Vec<Order> = self.aside.extract_if(.., |order| !is_stalled(&order.sale)).collect();
        self.aside.extend(self.orders.extract_if(.., |order| is_stalled(&order.sale)));
        self.orders.extend(on);
    }

    /// Takes at most `most` orders of this sale, which was set aside, into the next attempt.
    pub(super) fn take_back(&mut self, most: usize, sale: &SaleId) {
        self.orders.extend(self.aside.extract_if(.., |order| order.sale == *sale).take(most));
    }

    pub(super) async fn acknowledge(&self) {
        if !self.delivery.ack().await {
            // The channel is gone. The message comes again and is recognised.
            metrics::counter!("doorbuster_worker_late_acks_total").increment(1);
        }
    }
}

/// What the broker has lent with these deliveries, whatever has become of their orders since.
pub(super) fn lent<'a>(deliveries: impl IntoIterator<Item = &'a PendingDelivery>) -> Amount {
    deliveries.into_iter().map(|pending| pending.delivery.lent()).fold(Amount::default(), Amount::add)
}

/// The number of orders in a batch: the size of its transaction.
pub(super) fn orders_in(batch: &[PendingDelivery]) -> usize {
    batch.iter().map(|pending| pending.orders.len()).sum()
}
