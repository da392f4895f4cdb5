//! What happened to the orders of a batch whose traces are recorded, and when.

use std::time::SystemTime;

use super::pending::PendingDelivery;
use crate::domain::{Order, OrderId, TraceContext};
use crate::trace::{Kind, Span};

/// The steps of one attempt. Costs nothing for a batch without traces.
pub(super) struct Timeline {
    /// Orders whose traces are recorded, and when each arrived here.
    arrived: Vec<(OrderId, TraceContext, SystemTime)>,
    orders: usize,
    steps: Vec<(&'static str, SystemTime, SystemTime)>,
    since: SystemTime,
}

impl Timeline {
    pub(super) fn of(batch: &[PendingDelivery]) -> Self {
        let now = SystemTime::now();
        let arrived = batch.iter().flat_map(|pending| {
            let at = now.checked_sub(pending.delivery.age()).unwrap_or(now);
            let traced = move |(order, context): (&OrderId, &TraceContext)| (*order, *context, at);
            pending.traces.iter().map(traced)
        });
        let orders = batch.iter().map(|pending| pending.orders.len()).sum();
        Self { arrived: arrived.collect(), orders, steps: Vec::new(), since: now }
    }

    /// A step has ended that began when the one before it ended.
    pub(super) fn step(&mut self, name: &'static str) {
        if !self.arrived.is_empty() {
            let now = SystemTime::now();
            self.steps.push((name, self.since, now));
            self.since = now;
        }
    }

    /// Keeps the orders of which `is_done` holds: the others have no outcome, and their next attempt is recorded.
    pub(super) fn keep<'a>(&mut self, done: impl Iterator<Item = (&'a Order, bool)>) {
        if self.arrived.is_empty() {
            return;
        }
        let done: Vec<OrderId> = done.filter(|(_, is_done)| *is_done).map(|(order, _)| order.id).collect();
        self.arrived.retain(|(order, ..)| done.contains(order));
    }

    /// Records the spans of each order.
    pub(super) fn record(self) {
        for (order, context, at) in self.arrived {
            let Some(span) = Span::child(Some(context), "persist", Kind::Consumer) else { continue };
            let span = span
                .since(at)
                .with("doorbuster.order_id", order)
                .with_number("messaging.batch.message_count", self.orders);
            for (name, begun, ended) in &self.steps {
                if let Some(step) = Span::child(Some(span.context()), name, Kind::Internal) {
                    step.since(*begun).end_at(*ended);
                }
            }
            span.end_at(self.since);
        }
    }
}
