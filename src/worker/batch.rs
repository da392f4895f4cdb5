//! One batch through lease, transaction, ack, release and settle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Worker;
use super::outcome::{Books, WorkerError};
use crate::domain::{Order, SaleId};
use crate::fault::fault;
use crate::lease::{Guard, Taken};
use crate::queue::Delivery;
use crate::store::{Claim, Recorded};

/// What a lease must still last before COMMIT: longer than a commit takes, far shorter than a lease.
const MARGIN: Duration = Duration::from_secs(1);

/// Orders whose users' leases are held, ready for one transaction.
#[derive(Default)]
struct Claimed {
    claims: Vec<Claim>,
    /// For each claim, which delivery it came with.
    origins: Vec<usize>,
    guards: Vec<Guard>,
    /// For each delivery: are all its users' leases held?
    held: Vec<bool>,
}

impl Worker {
    /// Answers for each delivery whether all its orders have a committed outcome; those are
    /// acknowledged and settled. The others are to be tried again. On an error none was
    /// acknowledged, and all may be tried again.
    pub(super) async fn persist(&self, deliveries: &[Delivery]) -> Result<Vec<bool>, WorkerError> {
        let mut claimed = self.claim(deliveries).await?;
        let mut done = std::mem::take(&mut claimed.held);
        let result = self.commit(&claimed, &mut done).await;
        if result.is_ok() {
            fault!("ack.before", done.fill(false));
            for (delivery, _) in deliveries.iter().zip(&done).filter(|(_, done)| **done) {
                if !delivery.ack().await {
                    // The channel is gone: the delivery comes again, and will be recognised.
                    metrics::counter!("worker_late_acks_total").increment(1);
                }
            }
        }
        fault!("ack.after");
        // Also after an error, and waited for: the next try needs the same leases. What is not
        // released ends by itself.
        fault!("release.before", claimed.guards.drain(..).for_each(std::mem::forget));
        for guard in claimed.guards {
            let _ = guard.release().await;
        }
        fault!("release.after");
        let books = result?;
        fault!("settle.before", return Ok(done));
        books.settle(&self.gate).await;
        fault!("settle.after");
        Ok(done)
    }

    /// One lease per user, those of a sale in one round trip.
    async fn claim(&self, deliveries: &[Delivery]) -> Result<Claimed, WorkerError> {
        let mut sales: BTreeMap<&SaleId, Vec<(usize, &Order)>> = BTreeMap::new();
        for (at, delivery) in deliveries.iter().enumerate() {
            for order in delivery.orders.iter().flatten() {
                sales.entry(&order.sale).or_default().push((at, order));
            }
        }
        let mut claimed = Claimed { held: vec![true; deliveries.len()], ..Default::default() };
        for (sale, orders) in sales {
            // A user with two orders in the batch needs one lease.
            fault!(
                "lease.before",
                return Err(crate::lease::LeaseError::Unavailable("injected".into()).into())
            );
            let users: BTreeSet<&str> = orders.iter().map(|(_, order)| order.user.as_str()).collect();
            let Taken { held, guard } =
                self.leases.take(sale.as_str(), users.iter().copied(), self.settings.lease).await?;
            let held: BTreeMap<&str, bool> = users.into_iter().zip(held).collect();
            for (at, order) in orders {
                if held[order.user.as_str()] {
                    claimed.claims.push(Claim { order: order.clone(), fence: guard.token() });
                    claimed.origins.push(at);
                } else {
                    metrics::counter!("worker_lease_busy_total").increment(1);
                    claimed.held[at] = false;
                }
            }
            claimed.guards.push(guard);
        }
        fault!("lease.after", return Err(crate::lease::LeaseError::Late("injected".into()).into()));
        Ok(claimed)
    }

    /// The transaction. A claim whose fencing token was refused makes its delivery not `done`.
    async fn commit(&self, claimed: &Claimed, done: &mut [bool]) -> Result<Books, WorkerError> {
        if !claimed.guards.iter().all(|guard| guard.is_valid_for(MARGIN)) {
            return Err(WorkerError::LeaseTooOld);
        }
        let started = std::time::Instant::now();
        let recorded = self.store.record(&claimed.claims).await?;
        metrics::histogram!("worker_persist_seconds").record(started.elapsed().as_secs_f64());
        metrics::histogram!("worker_batch_orders").record(claimed.claims.len() as f64);
        let mut books = Books::default();
        for ((claim, recorded), at) in claimed.claims.iter().zip(recorded).zip(&claimed.origins) {
            if recorded == Recorded::Stale {
                done[*at] = false;
            }
            books.enter(&self.store, &claim.order, recorded).await?;
        }
        Ok(books)
    }
}
