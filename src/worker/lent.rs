//! Says in the outbox which orders this worker holds for long. The sweep would take them for lost, because the queue is
//! empty or a later order has its row, and publish them again and again.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::task::Id;
use tokio::time::Instant;

use super::pending::PendingDelivery;
use crate::domain::{Order, OrderId, SaleId};
use crate::gate::{Gate, GateError};
use crate::queue::Delivery;

/// The orders of the lanes at work, by the lane's task.
pub(super) struct Lent {
    /// How long an order may be held before the outbox hears of it, and how often it does from then on.
    every: Duration,
    lanes: HashMap<Id, (Instant, Vec<(SaleId, OrderId)>)>,
}

/// Orders by sale.
#[derive(Default)]
struct BySale(BTreeMap<SaleId, Vec<OrderId>>);

impl BySale {
    fn add(&mut self, sale: &SaleId, id: OrderId) {
        match self.0.get_mut(sale) {
            Some(ids) => ids.push(id),
            None => _ = self.0.insert(sale.clone(), vec![id]),
        }
    }

    fn add_all<'a>(&mut self, orders: impl IntoIterator<Item = &'a Order>) {
        for order in orders {
            self.add(&order.sale, order.id);
        }
    }
}

impl Lent {
    pub(super) fn new(every: Duration) -> Self {
        Self { every, lanes: HashMap::new() }
    }

    /// What a lane begins with: its orders, and since when the oldest delivery is held, which may have waited here before.
    pub(super) fn of(batch: &[PendingDelivery]) -> (Instant, Vec<(SaleId, OrderId)>) {
        let age = batch.iter().map(|pending| pending.delivery.age()).max().unwrap_or_default();
        let now = Instant::now();
        let orders = batch.iter().flat_map(|pending| &pending.orders);
        (now.checked_sub(age).unwrap_or(now), orders.map(|order| (order.sale.clone(), order.id)).collect())
    }

    /// A lane has begun.
    pub(super) fn begin(&mut self, lane: Id, held: (Instant, Vec<(SaleId, OrderId)>)) {
        self.lanes.insert(lane, held);
    }

    /// A lane has ended.
    pub(super) fn end(&mut self, lane: Id) {
        self.lanes.remove(&lane);
    }

    /// Puts off the sweep's look at the orders that are held for long: those of lanes, those that wait here, and those that
    /// have only arrived. If the gate cannot be reached, the next time does.
    pub(super) async fn put_off_sweep<'a>(
        &self,
        gate: &Gate,
        waiting: impl Iterator<Item = &'a PendingDelivery>,
        arrived: impl Iterator<Item = &'a Delivery>,
    ) {
        let mut held = BySale::default();
        for (since, orders) in self.lanes.values() {
            if since.elapsed() >= self.every {
                orders.iter().for_each(|(sale, id)| held.add(sale, *id));
            }
        }
        for pending in waiting.filter(|pending| pending.delivery.age() >= self.every) {
            held.add_all(pending.waiting());
        }
        for delivery in arrived.filter(|delivery| delivery.age() >= self.every) {
            held.add_all(delivery.orders.iter().flatten());
        }
        for (sale, ids) in &held.0 {
            if let Err(error) = gate.mark_confirmed(sale, ids).await {
                tracing::debug!(%sale, %error, "the sweep may publish orders that this worker holds");
                // The others would each wait as long, and the worker with them.
                if matches!(error, GateError::Unavailable(_) | GateError::Late(_)) {
                    return;
                }
            }
        }
    }
}
