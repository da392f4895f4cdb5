//! One attempt to persist a batch: lease, transaction, ack, release, settle.

use std::time::Duration;

use futures_util::future::join_all;

use super::pending::PendingDelivery;
use super::timeline::Timeline;
use super::{Worker, WorkerError};
use crate::domain::Order;
use crate::fault::fault;
use crate::lease::{COMMIT_MARGIN, Guard, LeaseOptions, release_all};
use crate::settlement::{Outcomes, Settler};
use crate::store::{Claim, Recorded};

/// How long a worker that hangs in the middle of a batch locks its users out.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// The place of an order: its delivery in the batch, and its place in that delivery.
type Place = (usize, usize);

/// Orders whose users' leases are held, ready for one transaction.
#[derive(Default)]
struct Claimed {
    claims: Vec<Claim>,
    /// The place of each claim's order.
    places: Vec<Place>,
    guards: Vec<Guard>,
}

/// What becomes of an order after an attempt.
#[derive(Clone, Copy)]
enum After {
    /// It has an outcome.
    Done,
    /// It is tried again soon.
    Retry,
    /// It waits until its sale can go on.
    SetAside,
}

impl After {
    fn of(recorded: &Recorded) -> Self {
        match recorded {
            Recorded::Stale => Self::Retry,
            Recorded::Locked => Self::SetAside,
            Recorded::Confirmed | Recorded::Already(..) | Recorded::Failed(..) => Self::Done,
        }
    }
}

impl Worker {
    /// Persists the orders whose users' leases are free. Orders with a committed outcome leave the batch and are
    /// settled; a message without further orders is acknowledged. Retry what is left. On an error nothing was
    /// acknowledged, and the whole batch may be retried.
    pub(super) async fn persist(&self, batch: &mut [PendingDelivery]) -> Result<(), WorkerError> {
        let mut timeline = Timeline::of(batch);
        #[cfg_attr(not(debug_assertions), expect(unused_mut, reason = "a failure point takes the guards"))]
        let mut claimed = self.claim(batch).await?;
        timeline.step("lease");
        let result = self.commit(&claimed).await;
        timeline.step("transaction");
        if let Ok((_, left)) = &result {
            let orders = claimed.claims.iter().map(|claim| &claim.order);
            timeline.keep(orders.zip(left.iter().map(|after| matches!(after, After::Done))));
            let mut after: Vec<Vec<After>> =
                batch.iter().map(|pending| vec![After::Retry; pending.orders.len()]).collect();
            for ((at, nth), claim) in claimed.places.iter().zip(left) {
                after[*at][*nth] = *claim;
            }
            fault!("ack.before", after.iter_mut().for_each(|after| after.fill(After::Retry)));
            for (pending, after) in batch.iter_mut().zip(after) {
                for (order, after) in std::mem::take(&mut pending.orders).into_iter().zip(after) {
                    match after {
                        After::Done => {}
                        After::Retry => pending.orders.push(order),
                        After::SetAside => pending.locked.push(order),
                    }
                }
            }
            // All at once: each may have to wait for a broker that is being killed.
            let done = batch.iter().filter(|pending| pending.is_done());
            join_all(done.map(PendingDelivery::acknowledge)).await;
            timeline.step("acknowledge");
        }
        fault!("ack.after");
        // Also after an error, and awaited, because the next attempt needs the same leases. Leases that are not
        // released expire.
        fault!("release.before", claimed.guards.drain(..).for_each(Guard::abandon));
        release_all(claimed.guards).await;
        fault!("release.after");
        timeline.step("release");
        let (outcomes, _) = result?;
        fault!("settle.before", return Ok(()));
        outcomes.settle(Settler { gate: &self.gate, store: &self.store, leases: &self.leases }).await;
        fault!("settle.after");
        timeline.step("settle");
        timeline.record();
        Ok(())
    }

    /// Takes one lease per user and sale. Orders whose lease is busy are left out.
    async fn claim(&self, batch: &[PendingDelivery]) -> Result<Claimed, WorkerError> {
        let mut orders: Vec<(Place, &Order)> = Vec::new();
        for (at, pending) in batch.iter().enumerate() {
            orders.extend(pending.orders.iter().enumerate().map(|(nth, order)| ((at, nth), order)));
        }
        // Rows that are neighbours in an index are written together.
        orders.sort_by_key(|(_, order)| &order.sale);
        fault!(
            "lease.before",
            return Err(
                crate::lease::LeaseError::from(crate::lease::Fault::Unavailable("injected".into())).into()
            )
        );
        let options = LeaseOptions::lasting(self.pace.borrow().lease).max_hold(LONGEST_HOLD);
        let users = orders.iter().map(|(_, order)| (order.sale.as_str(), order.user.as_str()));
        let (guards, tokens) = self.leases.take_in_scopes(users, options).await?;
        let mut claimed = Claimed { guards, ..Claimed::default() };
        for (place, order) in orders {
            if let Some(fence) = tokens.get(&(order.sale.as_str(), order.user.as_str())) {
                claimed.claims.push(Claim { order: order.clone(), fence: *fence });
                claimed.places.push(place);
            } else {
                metrics::counter!("doorbuster_worker_lease_busy_total").increment(1);
            }
        }
        fault!(
            "lease.after",
            return Err(crate::lease::LeaseError::from(crate::lease::Fault::Late("injected".into())).into())
        );
        Ok(claimed)
    }

    /// The transaction. Returns the outcomes, and what becomes of each claim.
    async fn commit(&self, claimed: &Claimed) -> Result<(Outcomes, Vec<After>), WorkerError> {
        let valid = || claimed.guards.iter().all(|guard| guard.is_valid_for(COMMIT_MARGIN));
        let started = std::time::Instant::now();
        let recorded = self.store.record(&claimed.claims, &valid).await?;
        metrics::histogram!("doorbuster_worker_persist_seconds").record(started.elapsed().as_secs_f64());
        metrics::histogram!("doorbuster_worker_batch_orders").record(claimed.claims.len() as f64);
        let after = recorded.iter().map(After::of).collect();
        let mut outcomes = Outcomes::default();
        for (claim, recorded) in claimed.claims.iter().zip(recorded) {
            outcomes.add(&claim.order, &recorded);
        }
        Ok((outcomes, after))
    }
}
