//! One batch through lease, transaction, ack, release and settle.

use std::time::Duration;

use super::pending::PendingDelivery;
use super::{Worker, WorkerError};
use crate::domain::Order;
use crate::fault::fault;
use crate::lease::{COMMIT_MARGIN, Guard, LeaseError, LeaseOptions, release_all};
use crate::settlement::{Outcomes, Settler};
use crate::store::{Claim, Recorded};

/// How long a worker that hangs in the middle of a batch keeps its users from other workers.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// Which of those in hand, and which of its orders.
type Place = (usize, usize);

/// Orders whose users' leases are held, ready for one transaction.
#[derive(Default)]
struct Claimed {
    claims: Vec<Claim>,
    /// For each claim, where it stands.
    origins: Vec<Place>,
    guards: Vec<Guard>,
}

impl Worker {
    /// Orders that have a committed outcome are settled and no longer in hand; a message that has no
    /// others is acknowledged. What is left is to be tried again. On an error nothing was
    /// acknowledged, and all may be tried again.
    pub(super) async fn persist(&self, hands: &mut [PendingDelivery]) -> Result<(), WorkerError> {
        #[cfg_attr(not(debug_assertions), expect(unused_mut, reason = "a failure point takes the guards"))]
        let mut claimed = self.claim(hands).await?;
        let result = self.commit(&claimed).await;
        if let Ok((_, stale)) = &result {
            let mut done: Vec<Vec<bool>> = hands.iter().map(|hand| vec![false; hand.orders.len()]).collect();
            for ((hand, order), stale) in claimed.origins.iter().zip(stale) {
                done[*hand][*order] = !stale;
            }
            fault!("ack.before", done.iter_mut().for_each(|done| done.fill(false)));
            for (hand, done) in hands.iter_mut().zip(done) {
                let mut done = done.into_iter();
                hand.orders.retain(|_| !done.next().unwrap_or(false));
                if hand.is_done() {
                    hand.acknowledge().await;
                }
            }
        }
        fault!("ack.after");
        // Also after an error, and waited for: the next try needs the same leases. What is not
        // released ends by itself.
        fault!("release.before", claimed.guards.drain(..).for_each(Guard::abandon));
        release_all(claimed.guards).await;
        fault!("release.after");
        let (outcomes, _) = result?;
        fault!("settle.before", return Ok(()));
        outcomes.settle(Settler { gate: &self.gate, store: &self.store, leases: &self.leases }).await;
        fault!("settle.after");
        Ok(())
    }

    /// One lease per user and sale.
    async fn claim(&self, hands: &[PendingDelivery]) -> Result<Claimed, WorkerError> {
        let mut orders: Vec<(Place, &Order)> = Vec::new();
        for (at, hand) in hands.iter().enumerate() {
            orders.extend(hand.orders.iter().enumerate().map(|(nth, order)| ((at, nth), order)));
        }
        // What stands together in an index is written together.
        orders.sort_by_key(|(_, order)| &order.sale);
        fault!(
            "lease.before",
            return Err(LeaseError::from(crate::lease::Fault::Unavailable("injected".into())).into())
        );
        let options = LeaseOptions::lasting(self.settings.lease).max_hold(LONGEST_HOLD);
        let users = orders.iter().map(|(_, order)| (order.sale.as_str(), order.user.as_str()));
        let (guards, tokens) = self.leases.take_in_scopes(users, options).await?;
        let mut claimed = Claimed { guards, ..Claimed::default() };
        for (at, order) in orders {
            if let Some(fence) = tokens.get(&(order.sale.as_str(), order.user.as_str())) {
                claimed.claims.push(Claim { order: order.clone(), fence: *fence });
                claimed.origins.push(at);
            } else {
                metrics::counter!("worker_lease_busy_total").increment(1);
            }
        }
        fault!(
            "lease.after",
            return Err(LeaseError::from(crate::lease::Fault::Late("injected".into())).into())
        );
        Ok(claimed)
    }

    /// The transaction, and of each claim whether its fencing token was refused.
    async fn commit(&self, claimed: &Claimed) -> Result<(Outcomes, Vec<bool>), WorkerError> {
        let valid = || claimed.guards.iter().all(|guard| guard.is_valid_for(COMMIT_MARGIN));
        let started = std::time::Instant::now();
        let recorded = self.store.record(&claimed.claims, &valid).await?;
        metrics::histogram!("worker_persist_seconds").record(started.elapsed().as_secs_f64());
        metrics::histogram!("worker_batch_orders").record(claimed.claims.len() as f64);
        let stale = recorded.iter().map(|recorded| *recorded == Recorded::Stale).collect();
        let mut outcomes = Outcomes::default();
        for (claim, recorded) in claimed.claims.iter().zip(recorded) {
            outcomes.add(&self.store, &claim.order, recorded).await?;
        }
        Ok((outcomes, stale))
    }
}
