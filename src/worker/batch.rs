//! One batch through lease, transaction, ack, release and settle.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Worker;
use super::outcome::{Books, WorkerError};
use crate::domain::{Order, SaleId};
use crate::lease::Taken;
use crate::queue::Delivery;
use crate::store::{Claim, Recorded};

/// What a lease must still last before COMMIT: longer than a commit takes, far shorter than a lease.
const MARGIN: Duration = Duration::from_secs(1);

impl Worker {
    /// Answers for each delivery whether all its orders have a committed outcome; those are
    /// acknowledged and settled. The others are to be tried again. On an error none was
    /// acknowledged, and all may be tried again.
    pub(super) async fn persist(&self, deliveries: &[Delivery]) -> Result<Vec<bool>, WorkerError> {
        let mut sales: BTreeMap<&SaleId, Vec<(usize, &Order)>> = BTreeMap::new();
        for (at, delivery) in deliveries.iter().enumerate() {
            for order in delivery.orders.iter().flatten() {
                sales.entry(&order.sale).or_default().push((at, order));
            }
        }
        let mut done = vec![true; deliveries.len()];
        let mut guards = Vec::new();
        let mut claims = Vec::new();
        let mut origins = Vec::new();
        for (sale, orders) in sales {
            let users = orders.iter().map(|(_, order)| order.user.as_str());
            // A user with two orders in the batch needs one lease.
            let unique: std::collections::BTreeSet<&str> = users.collect();
            let Taken { held, guard } =
                self.leases.take(sale.as_str(), unique.iter().copied(), self.settings.lease).await?;
            let held: BTreeMap<&str, bool> = unique.into_iter().zip(held).collect();
            for (at, order) in orders {
                if held[order.user.as_str()] {
                    claims.push(Claim { order: order.clone(), fence: guard.token() });
                    origins.push(at);
                } else {
                    metrics::counter!("worker_lease_busy_total").increment(1);
                    done[at] = false;
                }
            }
            guards.push(guard);
        }
        if !guards.iter().all(|guard| guard.is_valid_for(MARGIN)) {
            return Err(WorkerError::LeaseTooOld);
        }
        let started = std::time::Instant::now();
        let recorded = self.store.record(&claims).await?;
        metrics::histogram!("worker_persist_seconds").record(started.elapsed().as_secs_f64());
        metrics::histogram!("worker_batch_orders").record(claims.len() as f64);
        let mut books = Books::default();
        for ((claim, recorded), at) in claims.iter().zip(recorded).zip(origins) {
            if recorded == Recorded::Stale {
                done[at] = false;
            }
            books.enter(&self.store, &claim.order, recorded).await?;
        }
        for (delivery, _) in deliveries.iter().zip(&done).filter(|(_, done)| **done) {
            if !delivery.ack().await {
                // The channel is gone: the delivery comes again, and will be recognised.
                metrics::counter!("worker_late_acks_total").increment(1);
            }
        }
        for guard in guards {
            // What is not released ends by itself within the lease.
            let _ = guard.release().await;
        }
        books.settle(&self.gate).await;
        Ok(done)
    }
}
