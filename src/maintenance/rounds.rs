//! The rounds of maintenance. One front is the leader and does a round every `maintenance.every_ms`:
//!
//! 1. Return units of ended orders to the gate.
//! 2. Retry payments. Before the deadlines, so that a buyer who paid in time keeps their order.
//! 3. Expire orders that nobody paid in time.
//! 4. Run the scheduled tasks whose interval has passed.
//!
//! Each step is bounded, so that the others get their turn, and a failed step holds up no other. If the leader dies,
//! another front takes the lead when the lease ends and finds the rest in the database.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::MaintenanceError;
use super::leader::{LEADERSHIP, Leader, keep_leading};
use super::schedule::ScheduledTask;
use crate::domain::Millis;
use crate::gate::Gate;
use crate::lease::{Guard, Leases};
use crate::orders::{Expiry, Payments, Retried};
use crate::settlement::{SettlementError, compare_places, give_back_pending};
use crate::store::{Store, StoreError};

/// How often to do a round, and how much at once.
#[derive(Debug, Clone)]
pub struct MaintenanceSettings {
    /// Time between two rounds.
    pub every: Duration,
    /// Orders in one transaction or script call.
    pub batch: u64,
}

/// After so long without a turn behind buyers, orders expire before them: their units must come back some time.
const EXPIRES_WITHIN: Duration = Duration::from_secs(20);

/// Batches of one kind in one round.
const BATCHES: usize = 20;

const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// Payments that are retried at once. They have as many connections: otherwise those of a locked sale would make the others
/// wait for one.
pub const PAYMENTS: usize = 4;

/// Older builds call maintenance "upkeep". The scope keeps that name in Redis, so that an old and a new build that
/// run side by side exclude each other.
const SCOPE: &str = "_upkeep";

/// Gauges that only the leader sets.
const GAUGES: [&str; 6] = [
    "doorbuster_maintenance_returns_waiting",
    "doorbuster_maintenance_oldest_return_seconds",
    "doorbuster_maintenance_orders_overdue",
    "doorbuster_payments_pending",
    "doorbuster_payments_late",
    "doorbuster_sale_acts_pending",
];

/// Runs the rounds, on one front at a time.
pub struct Rounds {
    /// Takes the units back.
    pub gate: Gate,
    /// Decides who leads, and protects users while their orders expire.
    pub leases: Leases,
    /// Has the work that is due. Not behind buyers that wait for the database.
    pub store: Store,
    /// The same behind buyers. Orders expire through it, so that no order expires while its payment waits.
    pub behind_buyers: Store,
    /// Retries payments.
    pub payments: Payments,
    /// Further tasks, each with an interval.
    pub scheduled: Vec<ScheduledTask>,
    /// How often and how much.
    pub settings: MaintenanceSettings,
}

impl Rounds {
    /// Runs until `stop`. Errors are logged and retried in a later round.
    pub async fn run(self, stop: CancellationToken) {
        let mut leader = Leader::new(&self.leases, SCOPE);
        let mut last_runs: Vec<Option<Instant>> = self.scheduled.iter().map(|_| None).collect();
        let (mut measured, mut expired_at): (Option<Instant>, _) = (None, Instant::now());
        while stop.run_until_cancelled(tokio::time::sleep(self.settings.every)).await.is_some() {
            let Ok(lead) = leader.lead().await else {
                // What is due then is due because of the outage, and its payments wait as well.
                expired_at = Instant::now();
                continue;
            };
            let Some(lead) = lead else {
                // Another process measures now.
                if measured.take().is_some() {
                    GAUGES.iter().for_each(|name| metrics::gauge!(*name).set(0.0));
                }
                expired_at = Instant::now();
                continue;
            };
            if measured.is_none_or(|at| at.elapsed() >= MEASURE_EVERY) {
                measured = Some(Instant::now());
                self.measure().await;
            }
            // A round that is cut short by a stop is finished by the next leader.
            let round = lead.until_lost(self.round(lead, &mut last_runs, &mut expired_at));
            if let Some(Err(error)) = stop.run_until_cancelled(round).await {
                tracing::warn!(%error, "maintenance left to another front");
            }
        }
        leader.resign().await;
    }

    async fn round(&self, leader: &Guard, last_runs: &mut [Option<Instant>], expired_at: &mut Instant) {
        // What a database that went back in time says is due is not: its payments may be missing.
        if let Err(SettlementError::Store(StoreError::Behind(_))) =
            compare_places(&self.gate, &self.store).await
        {
            return;
        }
        log_done("return units to the gate", self.return_units(leader).await);
        log_done("retry payments", self.retry_payments(leader).await);
        log_done("expire orders", self.expire(leader, expired_at).await);
        for (task, last_run) in self.scheduled.iter().zip(last_runs) {
            if last_run.is_none_or(|last_run| last_run.elapsed() >= task.every) {
                keep_leading(leader).await;
                *last_run = Some(Instant::now());
                log_done(task.name, (task.work)().await);
            }
        }
    }

    /// Sets the gauges for waiting work.
    async fn measure(&self) {
        let Ok(waiting) = self.store.backlog().await else { return };
        let age = waiting.oldest_return.map_or(0, |oldest| (Millis::now().0 - oldest.0).max(0));
        metrics::gauge!("doorbuster_maintenance_returns_waiting").set(waiting.returns as f64);
        metrics::gauge!("doorbuster_maintenance_oldest_return_seconds").set(age as f64 / 1000.0);
        metrics::gauge!("doorbuster_maintenance_orders_overdue").set(waiting.overdue as f64);
        metrics::gauge!("doorbuster_payments_pending").set(waiting.pending_payments as f64);
        metrics::gauge!("doorbuster_payments_late").set(waiting.late_payments as f64);
        metrics::gauge!("doorbuster_sale_acts_pending").set(waiting.pending_acts as f64);
    }

    async fn return_units(&self, leader: &Guard) -> Result<usize, MaintenanceError> {
        let (mut returned, mut unavailable) = (0, Vec::new());
        for _ in 0..BATCHES {
            let keep = || Box::pin(keep_leading(leader)) as BoxFuture<'_, ()>;
            keep().await;
            let (gate, store, batch) = (&self.gate, &self.store, self.settings.batch);
            let some = give_back_pending(gate, store, batch, &mut unavailable, &keep).await?;
            returned += some.returned;
            if !some.more {
                break;
            }
        }
        metrics::counter!("doorbuster_maintenance_returned_total").increment(returned as u64);
        Ok(returned)
    }

    async fn retry_payments(&self, leader: &Guard) -> Result<usize, MaintenanceError> {
        let until = Instant::now() + LEADERSHIP;
        // A sale with a locked row must not hold up the payments of the others.
        let (mut ended, mut locked) = (0, Vec::new());
        loop {
            let due = self.payments.due(&locked, self.settings.batch).await?;
            let known = locked.len();
            // Each may wait for a lease or a server, so several run at once, and only for a while.
            for some in due.chunks(PAYMENTS) {
                if Instant::now() >= until {
                    return Ok(ended);
                }
                // One may wait for a lease and a lock for longer than half of the lead.
                let _ = leader.renew().await;
                let some: Vec<_> = some.iter().filter(|payment| !locked.contains(&payment.sale)).collect();
                let retries = some.iter().map(|payment| self.payments.retry(payment));
                for (payment, retried) in some.iter().zip(futures_util::future::join_all(retries).await) {
                    match retried {
                        Retried::Ended => ended += 1,
                        Retried::Pending => {}
                        Retried::Locked => locked.push(payment.sale.clone()),
                    }
                }
            }
            if locked.len() == known {
                return Ok(ended);
            }
        }
    }

    /// `expired_at` is when this last had a turn.
    async fn expire(&self, leader: &Guard, expired_at: &mut Instant) -> Result<usize, MaintenanceError> {
        let store = if expired_at.elapsed() < EXPIRES_WITHIN { &self.behind_buyers } else { &self.store };
        let mut expired = 0;
        // A sale with a locked row must not hold up the units of the others.
        let mut unavailable = Vec::new();
        for _ in 0..BATCHES {
            keep_leading(leader).await;
            let overdue = store.overdue_orders(&unavailable, self.settings.batch).await?;
            if overdue.is_empty() {
                if unavailable.is_empty() {
                    *expired_at = Instant::now();
                }
                break;
            }
            let failed = unavailable.len();
            let expiry = Expiry { gate: &self.gate, store, leases: &self.leases };
            let keep = || Box::pin(keep_leading(leader)) as BoxFuture<'_, ()>;
            let some = expiry.expire(&overdue, &mut unavailable, &keep).await;
            expired += some;
            if some > 0 {
                *expired_at = Instant::now();
            }
            // Orders that are left of the other sales belong to users whose leases are busy.
            let stands_still = some == 0 && unavailable.len() == failed;
            if stands_still || overdue.len() as u64 != self.settings.batch {
                break;
            }
        }
        Ok(expired)
    }
}

fn log_done(task: &str, done: Result<usize, MaintenanceError>) {
    match done {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "maintenance: {task}"),
        Err(error) => tracing::warn!(%error, "maintenance failed, will be retried: {task}"),
    }
}
