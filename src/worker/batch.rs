//! One batch through lease, transaction, ack, release and settle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Worker;
use super::outcome::{Books, WorkerError};
use crate::domain::{Order, SaleId};
use crate::fault::fault;
use crate::lease::{Guard, LeaseError, NAMES_AT_ONCE, Terms};
use crate::queue::Delivery;
use crate::store::{Claim, Recorded};

/// What a lease must still last before COMMIT: longer than a commit takes, far shorter than a lease.
const MARGIN: Duration = Duration::from_secs(1);

/// How long a worker that hangs in the middle of a batch keeps its users from other workers.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

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
        fault!("release.before", claimed.guards.drain(..).for_each(Guard::let_run_out));
        for guard in claimed.guards {
            let _ = guard.release().await;
        }
        fault!("release.after");
        let books = result?;
        fault!("settle.before", return Ok(done));
        books.settle(&self.gate, &self.store, &self.leases).await;
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
            fault!(
                "lease.before",
                return Err(LeaseError::from(crate::lease::Fault::Unavailable("injected".into())).into())
            );
            // A user with two orders in the batch needs one lease.
            let users: BTreeSet<&str> = orders.iter().map(|(_, order)| order.user.as_str()).collect();
            let tokens = self.take(sale, users, &mut claimed.guards).await?;
            for (at, order) in orders {
                if let Some(fence) = tokens.get(order.user.as_str()) {
                    claimed.claims.push(Claim { order: order.clone(), fence: *fence });
                    claimed.origins.push(at);
                } else {
                    metrics::counter!("worker_lease_busy_total").increment(1);
                    claimed.held[at] = false;
                }
            }
        }
        fault!(
            "lease.after",
            return Err(LeaseError::from(crate::lease::Fault::Late("injected".into())).into())
        );
        Ok(claimed)
    }

    /// The fencing token of each user whose lease was free.
    async fn take<'a>(
        &self,
        sale: &SaleId,
        users: BTreeSet<&'a str>,
        guards: &mut Vec<Guard>,
    ) -> Result<BTreeMap<&'a str, i64>, LeaseError> {
        let terms = Terms::lasting(self.settings.lease).at_most(LONGEST_HOLD);
        let users: Vec<&str> = users.into_iter().collect();
        let mut tokens = BTreeMap::new();
        for users in users.chunks(NAMES_AT_ONCE) {
            let taken = self.leases.take(sale.as_str(), users.iter().copied(), terms).await?;
            if let Some(guard) = taken.guard {
                let held = users.iter().zip(&taken.held).filter(|(_, held)| **held);
                tokens.extend(held.map(|(user, _)| (*user, guard.token())));
                guards.push(guard);
            }
        }
        Ok(tokens)
    }

    /// The transaction. A claim whose fencing token was refused makes its delivery not `done`.
    async fn commit(&self, claimed: &Claimed, done: &mut [bool]) -> Result<Books, WorkerError> {
        let valid = || claimed.guards.iter().all(|guard| guard.is_valid_for(MARGIN));
        let started = std::time::Instant::now();
        let recorded = self.store.record(&claimed.claims, &valid).await?;
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
