//! What must be done though nobody asks: units that are owed to the gate, deadlines, payments that wait,
//! acts that died half way. One process does it at a time, by a lease; another takes over when it dies.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::leader::{LEADERSHIP, lead};
use super::schedule::ScheduledTask;
use super::write_log;
use crate::domain::{Millis, SaleId};
use crate::gate::Gate;
use crate::lease::{Guard, Leases};
use crate::orders::{Payments, expire};
use crate::queue::OrderLog;
use crate::settlement::give_back;
use crate::store::{Return, Store};

#[derive(Debug, Clone)]
pub struct MaintenanceSettings {
    pub every: Duration,
    /// Orders in one transaction or script call.
    pub batch: u64,
}

/// Batches of one kind in one round, so that the others have their turn.
const BATCHES: usize = 20;
const MEASURED_EVERY: Duration = Duration::from_secs(5);
/// Payments that are gone on with at once.
const PAYMENTS: usize = 16;
/// No sale can have this id, so no buyer's lease is the leader's.
const SCOPE: &str = "_upkeep";

pub struct Rounds {
    pub gate: Gate,
    pub leases: Leases,
    pub store: Store,
    pub payments: Payments,
    pub log: OrderLog,
    /// Besides what is known here.
    pub also: Vec<ScheduledTask>,
    pub settings: MaintenanceSettings,
}

impl Rounds {
    /// Runs until `stop`. Trouble of any kind is waited out.
    pub async fn run(self, stop: CancellationToken) {
        let mut leader: Option<Guard> = None;
        let mut last: Vec<Option<Instant>> = self.also.iter().map(|_| None).collect();
        let mut measured: Option<Instant> = None;
        while stop.run_until_cancelled(tokio::time::sleep(self.settings.every)).await.is_some() {
            leader = lead(&self.leases, SCOPE, leader).await;
            let Some(guard) = &leader else {
                if measured.take().is_some() {
                    Self::resign();
                }
                continue;
            };
            if measured.is_none_or(|at| at.elapsed() >= MEASURED_EVERY) {
                measured = Some(Instant::now());
                self.measure().await;
            }
            // What is under way when the process is asked to stop is finished by the next.
            let round = guard.until_lost(self.round(guard, &mut last));
            if let Some(Err(error)) = stop.run_until_cancelled(round).await {
                tracing::warn!(%error, "upkeep left to another front");
            }
        }
        if let Some(leader) = leader {
            let _ = leader.release().await;
        }
    }

    /// Trouble with one kind of work is not the others'.
    async fn round(&self, leader: &Guard, last: &mut [Option<Instant>]) {
        told("units were given back to the gate", self.give_back(leader).await);
        // Before the deadlines: who paid in time keeps his order.
        told("payments were gone on with", self.pay(leader).await);
        told("orders have expired", self.expire(leader).await);
        self.still_leads(leader).await;
        match write_log(&self.store, &self.log).await {
            Ok(entries) => tracing::trace!(entries, "written to the order log"),
            // Said by whoever publishes, and by a gauge.
            Err(error) => tracing::debug!(error, "the order log waits"),
        }
        for (due, last) in self.also.iter().zip(last) {
            if last.is_none_or(|last| last.elapsed() >= due.every) {
                self.still_leads(leader).await;
                *last = Some(Instant::now());
                told(due.what, (due.work)().await);
            }
        }
    }

    /// What waits, for whoever watches. Measured by the leader alone.
    async fn measure(&self) {
        let Ok(waiting) = self.store.backlog().await else { return };
        let age = waiting.oldest_return.map_or(0, |oldest| (Millis::now().0 - oldest.0).max(0));
        metrics::gauge!("maintenance_returns_waiting").set(waiting.returns as f64);
        metrics::gauge!("maintenance_oldest_return_seconds").set(age as f64 / 1000.0);
        metrics::gauge!("maintenance_orders_overdue").set(waiting.overdue as f64);
        metrics::gauge!("payments_pending").set(waiting.pending_payments as f64);
        metrics::gauge!("payments_late").set(waiting.late_payments as f64);
        metrics::gauge!("sale_acts_pending").set(waiting.pending_acts as f64);
    }

    /// Another process measures now.
    fn resign() {
        for name in [
            "maintenance_returns_waiting",
            "maintenance_oldest_return_seconds",
            "maintenance_orders_overdue",
            "payments_pending",
            "payments_late",
            "sale_acts_pending",
            "log_oldest_unwritten_seconds",
        ] {
            metrics::gauge!(name).set(0.0);
        }
    }

    async fn still_leads(&self, leader: &Guard) {
        if !leader.is_valid_for(LEADERSHIP / 2) {
            // After an error it goes on until the lease ends.
            let _ = leader.renew().await;
        }
    }

    async fn give_back(&self, leader: &Guard) -> Result<usize, String> {
        let (mut done, mut waiting) = (0, Vec::new());
        for _ in 0..BATCHES {
            self.still_leads(leader).await;
            let due = self
                .store
                .pending_returns(&waiting, self.settings.batch)
                .await
                .map_err(|error| error.to_string())?;
            let mut sales: std::collections::BTreeMap<&SaleId, Vec<Return>> = Default::default();
            for owed in &due {
                sales.entry(&owed.sale).or_default().push(owed.clone());
            }
            for (sale, owed) in sales {
                match give_back(&self.gate, &self.store, &owed).await {
                    Ok(()) => done += owed.len(),
                    Err(error) => {
                        tracing::warn!(%sale, orders = owed.len(), %error, "units of ended orders wait for their gate");
                        // A sale that is frozen must not keep the others' units.
                        waiting.push(sale.clone());
                    }
                }
            }
            if due.len() as u64 != self.settings.batch {
                break;
            }
        }
        metrics::counter!("maintenance_returned_total").increment(done as u64);
        Ok(done)
    }

    async fn expire(&self, leader: &Guard) -> Result<usize, String> {
        let mut done = 0;
        for _ in 0..BATCHES {
            self.still_leads(leader).await;
            let due =
                self.store.overdue_orders(self.settings.batch).await.map_err(|error| error.to_string())?;
            if due.is_empty() {
                break;
            }
            let expired = expire(&self.gate, &self.store, &self.leases, &due).await;
            done += expired;
            // The rest are those for whom somebody acts just now.
            if expired == 0 || due.len() as u64 != self.settings.batch {
                break;
            }
        }
        Ok(done)
    }

    async fn pay(&self, leader: &Guard) -> Result<usize, String> {
        let due = self.payments.due(self.settings.batch).await.map_err(|error| error.to_string())?;
        let until = Instant::now() + LEADERSHIP;
        let mut ended = 0;
        // Each may wait for a lease or a server: some at once, and no longer than a while.
        for some in due.chunks(PAYMENTS) {
            if Instant::now() >= until {
                break;
            }
            let _ = leader.renew().await;
            let tried = some.iter().map(|payment| self.payments.retry(payment));
            let tried = futures_util::future::join_all(tried).await;
            ended += tried.into_iter().filter(|ended| *ended).count();
        }
        Ok(ended)
    }
}

fn told(what: &str, done: Result<usize, String>) {
    match done {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "{what}"),
        Err(error) => tracing::warn!(error, "upkeep waits: {what}"),
    }
}
