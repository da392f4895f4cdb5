//! A process that works: its parts started, watched, and stopped.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::config::{Config, RebuildPolicy};
use super::health::Health;
use super::listen::{for_buyers, for_operators, listen};
use super::parts::{Parts, StartError};
use crate::control::{Control, DeadLetterActs};
use crate::front::{self, Buyers, Operations, Readiness, Tokens};
use crate::intake::Intake;
use crate::maintenance::{self, Adopter, BooksCheck, Rebuilder, RestartCheck, Rounds, Sweep, schedule};
use crate::orders::{Orders, Payments};
use crate::queue::{Consumer, DeadLetters, OrderLog, Publisher};
use crate::recovery::Rebuild;
use crate::worker::Worker;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Front,
    Worker,
    Both,
}

pub struct Running {
    /// `None` where no buyers are served.
    pub buyers: Option<SocketAddr>,
    pub operations: SocketAddr,
    pub control: Control,
    pub tokens: Arc<Tokens>,
    pub parts: Parts,
    tasks: JoinSet<&'static str>,
    stop: CancellationToken,
    drain: Duration,
}

impl Running {
    /// Starts to work and returns. Waits for no server; only what no waiting would mend is an error.
    pub async fn start(config: &Config, role: Role) -> Result<Self, StartError> {
        let mut parts = Parts::open(config).await?;
        parts.check_promises(config).await?;
        let operations = listen("operations", &config.operations.listen).await?;
        let buyers = match role {
            Role::Worker => None,
            _ => Some(listen("front", &config.front.listen).await?),
        };
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let tokens = Arc::new(Tokens::new(config.auth()));
        let control = Control::new(parts.gate.clone(), parts.store.clone());
        let orders = Orders::new(parts.gate.clone(), parts.store.clone(), parts.leases.clone());
        let metrics = metrics_handle();
        begin_at_zero();
        let buyers_at = buyers.as_ref().and_then(|listener| listener.local_addr().ok());
        let letters = DeadLetters::open(config.queue());
        parts.letters = Some(letters.clone());
        let mut trusts = None;
        if let Some(listener) = buyers {
            let publisher = Publisher::open(config.queue());
            parts.publisher = Some(publisher.clone());
            let (gate, store) = (parts.gate.clone(), parts.store.clone());
            let log = OrderLog::with(config.queue(), publisher.clone());
            let compared = log.clone();
            parts.gate.compare_restarts_with(move || {
                Box::pin(maintenance::verify(gate.clone(), store.clone(), compared.clone()))
            });
            let (tell, trust) = watch::channel(Err("its books are being compared".to_owned()));
            trusts = Some(trust);
            let trust = RestartCheck { gate: parts.gate.clone(), tell };
            spawn(&mut tasks, "the comparison of redis", trust.run(stop.clone()));
            let intake = Intake::new(parts.gate.clone(), publisher, parts.store.clone(), config.intake());
            let sweep = Sweep {
                gate: parts.gate.clone(),
                leases: parts.leases.clone(),
                relay: intake.relay().clone(),
                dead_letters: letters.clone(),
                store: parts.store.clone(),
                settings: config.sweep(),
            };
            let payments = Payments::new(parts.store.clone(), orders.clone(), intake.clone());
            let watch = BooksCheck {
                gate: parts.gate.clone(),
                store: parts.store.clone(),
                leases: parts.leases.clone(),
                control: control.clone(),
                every: Duration::from_secs(config.audit.every_s),
                pause_sale: config.audit.pause_sale,
            };
            if config.audit.every_s > 0 {
                spawn(&mut tasks, "the audit", watch.run(stop.clone()));
            }
            let rebuild = Rebuild {
                gate: parts.gate.clone(),
                store: parts.store.clone(),
                leases: parts.leases.clone(),
                dead_letters: letters.clone(),
                log: log.clone(),
            };
            if config.gate.rebuild == RebuildPolicy::Auto {
                spawn(&mut tasks, "the rebuild", Rebuilder { rebuild }.run(stop.clone()));
            }
            let adoption = Adopter {
                gate: parts.gate.clone(),
                store: parts.store.clone(),
                leases: parts.leases.clone(),
            };
            spawn(&mut tasks, "the adoption", adoption.run(stop.clone()));
            let maintenance = Rounds {
                gate: parts.gate.clone(),
                leases: parts.leases.clone(),
                store: parts.store.clone(),
                payments: payments.clone(),
                log,
                also: schedule(&control, config.purge_after()),
                settings: config.maintenance(),
            };
            let router = front::buyers(Buyers {
                intake,
                orders: orders.clone(),
                payments,
                providers: config.providers(),
                throttle: config.throttle(),
                tokens: tokens.clone(),
                settings: config.front(),
                stop: stop.clone(),
            });
            spawn(
                &mut tasks,
                "the buyers' listener",
                front::serve(listener, router, for_buyers(config), stop.clone()),
            );
            spawn(&mut tasks, "the sweep", sweep.run(stop.clone()));
            spawn(&mut tasks, "maintenance", maintenance.run(stop.clone()));
        }
        let mut consumes = None;
        if role != Role::Front {
            let worker = Worker {
                gate: parts.gate.clone(),
                leases: parts.leases.clone(),
                store: parts.store.clone(),
                dead_letters: letters.clone(),
                settings: config.worker(),
            };
            let consumer = Consumer::new(config.queue(), config.prefetch());
            consumes = Some(consumer.watch());
            spawn(&mut tasks, "the worker", worker.run(consumer, stop.clone()));
        }
        let (tell, readiness) = watch::channel(Readiness::default());
        let health = Health {
            parts: parts.clone(),
            consumes,
            trusts,
            check_settings: config.redis.check_settings,
            metrics: metrics.clone(),
            tell,
        };
        spawn(&mut tasks, "the health check", health.run(stop.clone()));
        let operations_at = operations.local_addr().map_err(|source| StartError::Listen {
            what: "operations",
            address: config.operations.listen.clone(),
            source,
        })?;
        let router = front::operations(Operations {
            control: control.clone(),
            dead_letters: DeadLetterActs::new(letters, parts.gate.clone(), parts.store.clone()),
            orders,
            gate: parts.gate.clone(),
            store: parts.store.clone(),
            tokens: tokens.clone(),
            settings: config.front(),
            readiness,
            metrics: Box::new(move || metrics.render()),
        });
        spawn(
            &mut tasks,
            "the operations listener",
            front::serve(operations, router, for_operators(config), stop.clone()),
        );
        Ok(Self {
            buyers: buyers_at,
            operations: operations_at,
            control,
            tokens,
            parts,
            tasks,
            stop,
            drain: config.drain(),
        })
    }

    /// Returns once orders can be published.
    pub async fn publisher_is_up(&self, within: Duration) -> Result<(), StartError> {
        let Some(publisher) = &self.parts.publisher else { return Ok(()) };
        tokio::time::timeout(within, publisher.wait_until_up())
            .await
            .map_err(|_| StartError::Broker { within })
    }

    /// Returns when a part has ended though nobody asked it to: a fault of ours. A process that
    /// went on without it would look alive and do nothing.
    pub async fn part_ended(&mut self) -> String {
        match self.tasks.join_next().await {
            Some(Ok(name)) => format!("{name} has ended"),
            Some(Err(error)) => format!("a part has failed: {error}"),
            None => std::future::pending().await,
        }
    }

    /// Asks everything to finish, and waits for it within the drain time.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // The listeners drain by the same limit; a moment more lets them say what was left.
        if tokio::time::timeout(self.drain + Duration::from_secs(1), all).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), after = ?self.drain, "stopped with work under way; unacknowledged orders come again");
            // Joined, too: what they hold is released when they are gone.
            let _ = tokio::time::timeout(Duration::from_secs(1), self.tasks.shutdown()).await;
        } else {
            tracing::info!("stopped, nothing under way");
        }
        // What was dropped with its task is released, or else its users would have to wait.
        self.parts.leases.wait_until_idle(Duration::from_secs(1)).await;
        self.parts.store.close().await;
    }
}

/// A counter that begins with its first event shows no increase: an alert on it would miss the first.
/// A test compares the names with the alerts.
fn begin_at_zero() {
    for name in [
        "front_panics_total",
        "payments_forged_total",
        "payments_stale_total",
        "sweep_published_total",
        "worker_consumer_restarts_total",
        "worker_fence_refused_total",
        "worker_sales_paused_total",
    ] {
        metrics::counter!(name).increment(0);
    }
    for state in ["applied", "late", "mismatch"] {
        metrics::counter!("payments_ended_total", "state" => state).increment(0);
    }
    metrics::counter!("relay_published_total", "result" => "left").increment(0);
    metrics::counter!("worker_orders_total", "status" => "failed").increment(0);
    for why in ["taken", "ended", "held too long"] {
        metrics::counter!("leases_lost_total", "why" => why).increment(0);
    }
}

fn spawn(
    tasks: &mut JoinSet<&'static str>,
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) {
    tasks.spawn(async move {
        work.await;
        name
    });
}

/// Metrics are counted per process, however many times the parts are started in it.
fn metrics_handle() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let recorder = PrometheusBuilder::new().build_recorder();
            let handle = recorder.handle();
            // Fails only where a recorder is installed already: then that one counts.
            let _ = metrics::set_global_recorder(recorder);
            handle
        })
        .clone()
}
