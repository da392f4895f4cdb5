//! Watches the servers once a second: readiness, gauges, and the settings of a Redis that was replaced by another
//! one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::domain::{Millis, SaleId, SaleState};
use crate::front::{Dependency, Readiness};
use crate::gate::{GateError, GateSale};
use crate::maintenance::NotCompared;
use crate::process::live::Mode;
use crate::process::parts::Parts;
use crate::process::shared::Shared;
use crate::process::tasks::Tasks;
use crate::queue::{Consuming, DeadLetters, Publisher};
use crate::store::StoreError;
use crate::telemetry::{Label, SaleGauges};

/// Returns the readiness as of the last check. `consumes` follows the worker's consumer; `compared` says
/// whether the books of this Redis were compared; `None` for work that this process does not do.
pub(in crate::process) fn start(
    shared: &Shared<'_>,
    tasks: &mut Tasks,
    consumes: Option<watch::Receiver<Consuming>>,
    compared: Option<watch::Receiver<Result<(), NotCompared>>>,
    metrics: &PrometheusHandle,
) -> watch::Receiver<Readiness> {
    let (report, readiness) = watch::channel(Readiness::default());
    let health = Health {
        // A database that is busy with buyers is not down.
        parts: Parts { store: shared.parts.store.ahead_of_buyers(1), ..shared.parts.clone() },
        consumes,
        compared,
        modes: shared.live.modes.clone(),
        check_settings: shared.config.redis.check_settings,
        metrics: metrics.clone(),
        report,
    };
    tasks.spawn("the health check", health.run(shared.stop.clone()));
    readiness
}

const EVERY: Duration = Duration::from_secs(1);

struct Health {
    parts: Parts,
    consumes: Option<watch::Receiver<Consuming>>,
    compared: Option<watch::Receiver<Result<(), NotCompared>>>,
    modes: watch::Receiver<Vec<Mode>>,
    check_settings: bool,
    metrics: PrometheusHandle,
    report: watch::Sender<Readiness>,
}

impl Health {
    async fn run(self, stop: CancellationToken) {
        let mut known_run = String::new();
        let mut promises = Vec::new();
        loop {
            let redis = self.parts.gate.ping().await;
            if let Ok(run) = &redis
                && *run != known_run
            {
                // Without an answer it is asked again at the next look.
                if let Some(broken) = self.wrong_settings().await {
                    promises = broken;
                    known_run.clone_from(run);
                }
            }
            let readiness = self.readiness(redis.map(|_| ()), &promises).await;
            for (name, dependency) in &readiness.dependencies {
                metrics::gauge!("doorbuster_dependency_up", "dependency" => *name)
                    .set(f64::from(u8::from(dependency.up)));
            }
            if readiness.status != self.report.borrow().status {
                tracing::info!(status = readiness.status, "readiness changed");
            }
            self.report.send_replace(readiness);
            if stop.run_until_cancelled(self.gauges()).await.is_none() {
                return;
            }
            self.metrics.run_upkeep();
            if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
                return;
            }
        }
    }

    /// `None` if Redis did not answer.
    async fn wrong_settings(&self) -> Option<Vec<String>> {
        if !self.check_settings {
            return Some(Vec::new());
        }
        match self.parts.gate.wrong_settings().await {
            Ok(Some(wrong)) => {
                for wrong in &wrong {
                    tracing::error!(wrong, "orders are not safe");
                }
                Some(wrong)
            }
            Ok(None) => {
                tracing::warn!("redis does not show its settings (CONFIG GET): check them yourself");
                Some(Vec::new())
            }
            Err(_) => None,
        }
    }

    async fn readiness(&self, redis: Result<(), GateError>, promises: &[String]) -> Readiness {
        let mut redis = dependency(redis);
        if redis.up && !promises.is_empty() {
            redis = Dependency { up: false, detail: Some(promises.join("; ")) };
        } else if redis.up
            && let Some(compared) = &self.compared
        {
            redis = dependency(compared.borrow().clone().map_err(|why| why.to_string()));
        }
        let broker = self.broker();
        let database = self.database().await;
        let modes: Vec<&'static str> = self.modes.borrow().iter().map(|mode| mode.name()).collect();
        let status = match (redis.up, broker.up && database.up && modes.is_empty()) {
            (true, true) => "ready",
            (true, false) => "degraded",
            (false, _) => "unavailable",
        };
        Readiness {
            status,
            dependencies: [("redis", redis), ("broker", broker), ("database", database)].into(),
            modes,
        }
    }

    async fn database(&self) -> Dependency {
        let store = &self.parts.store;
        if let Err(error) = store.check_tables().await {
            return dependency(Err(error));
        }
        match store.ensure_current().await {
            Ok(()) => dependency(Ok::<_, StoreError>(())),
            Err(error @ StoreError::Behind(_)) => dependency(Err(error)),
            // It answers; an outage of another server must not be blamed on it.
            Err(error) => {
                let detail = format!("nothing is written before it has been compared: {error}");
                Dependency { up: true, detail: Some(detail) }
            }
        }
    }

    fn broker(&self) -> Dependency {
        let publishes = self.parts.publisher.as_ref().map(Publisher::is_up);
        let consumes = self.consumes.as_ref().map(|consuming| *consuming.borrow());
        match (publishes, consumes) {
            (Some(false), _) | (_, Some(Consuming::Connecting)) => {
                Dependency { up: false, detail: Some("not connected, or blocked".into()) }
            }
            // An outage of another server must not be blamed on the broker.
            (_, Some(Consuming::Closed)) => {
                let paused = self.modes.borrow().contains(&Mode::PersistencePaused);
                let detail = if paused {
                    "the worker takes no orders because worker.persist is false"
                } else {
                    "the worker takes no orders until redis and the database answer"
                };
                Dependency { up: true, detail: Some(detail.into()) }
            }
            _ => Dependency { up: true, detail: None },
        }
    }

    async fn gauges(&self) {
        if let Some(depths) = self.parts.dead_letters.as_ref().and_then(DeadLetters::depths) {
            for (queue, waiting) in
                [("orders", depths.orders), ("dead", depths.dead), ("unrouted", depths.unrouted)]
            {
                metrics::gauge!("doorbuster_queue_messages", "queue" => queue).set(f64::from(waiting));
            }
        }
        let (in_use, max) = self.parts.store.connections();
        metrics::gauge!("doorbuster_database_connections_in_use").set(f64::from(in_use));
        metrics::gauge!("doorbuster_database_connections_max").set(f64::from(max));
        let Ok(ids) = self.parts.gate.sales().await else { return };
        let mut sales = Vec::with_capacity(ids.len());
        for id in ids {
            match self.parts.gate.describe(&id).await {
                Ok(described) => sales.extend(described.map(|sale| (id, sale))),
                // A later build may have written it.
                Err(GateError::Broken(_)) => {}
                // A Redis that hangs would take a timeout for each sale, and readiness waits for this.
                Err(_) => return,
            }
        }
        show_sales(sales, &self.parts.sale_gauges);
    }
}

/// The most active are those with the most orders in flight, then those that are open.
fn show_sales(mut sales: Vec<(SaleId, GateSale)>, gauges: &SaleGauges) {
    sales.sort_by_key(|(_, sale)| Reverse((sale.waiting, sale.state == SaleState::Open)));
    gauges.rank(sales.iter().map(|(id, _)| id.clone()));
    let of_each = |value: &dyn Fn(&GateSale) -> f64| -> BTreeMap<Label, f64> {
        sales.iter().map(|(id, sale)| (Label::of(id), value(sale))).collect()
    };
    let in_state = |state| of_each(&|sale| f64::from(u8::from(sale.state == state)));
    gauges.show("doorbuster_sale_paused", in_state(SaleState::Paused));
    gauges.show("doorbuster_sale_frozen", in_state(SaleState::Frozen));
    gauges.show("doorbuster_outbox_orders", of_each(&|sale| sale.waiting as f64));
    let age = |sale: &GateSale| sale.oldest.map_or(0, |oldest| sale.now.0 - oldest.0).max(0) as f64 / 1000.0;
    gauges.show("doorbuster_outbox_oldest_seconds", of_each(&age));
    let items = sales.iter().flat_map(|(id, sale)| sale.items.iter().map(move |item| (id, item)));
    let left =
        items.map(|(id, item)| (Label { sku: Some(item.sku.clone()), ..Label::of(id) }, item.left as f64));
    gauges.show("doorbuster_gate_units_left", left.collect());
    if let Some((_, sale)) = sales.last() {
        let skew = (sale.clock().0 - Millis::now().0).abs() as f64 / 1000.0;
        metrics::gauge!("doorbuster_redis_clock_difference_seconds").set(skew);
    }
}

fn dependency(state: Result<(), impl Display>) -> Dependency {
    match state {
        Ok(()) => Dependency { up: true, detail: None },
        Err(why) => Dependency { up: false, detail: Some(why.to_string()) },
    }
}
