//! A running process: started, watched, stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use super::config::Config;
use super::listen::listen;
use super::live::Follower;
use super::metrics;
use super::parts::{Parts, StartError};
use super::shared::Shared;
use super::start;
use super::tasks::{TaskEnded, Tasks};
use crate::control::Control;
use crate::front::{AuthSettings, Monitoring};
use crate::maintenance::{PlaceCheck, write_last_entries};
use crate::queue::{DeadLetters, OrderLog, Publisher, QueueSettings};

/// Which work a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Serves buyers, and does maintenance.
    Front,
    /// Writes orders to the database.
    Worker,
    /// The work of a front and of a worker.
    Both,
}

/// A process whose tasks are running. Stop it with [`Running::stop`]; dropping it aborts its tasks.
pub struct Running {
    /// Where buyers are served, or `None` in a worker.
    pub buyers: Option<SocketAddr>,
    /// Where operators are served.
    pub operations: SocketAddr,
    /// Where monitoring is served without the admin API, if it has an address of its own.
    pub monitoring: Option<SocketAddr>,
    /// The acts of an operator.
    pub control: Control,
    /// What this process demands of tokens. A worker's has no secret.
    pub auth: AuthSettings,
    /// The connections to the servers.
    pub parts: Parts,
    tasks: Tasks,
    drain: Duration,
    queue: QueueSettings,
}

/// How long a process that stops may write to the order log. What is left stays in the database, for the next front.
const LAST_ENTRIES_WITHIN: Duration = Duration::from_secs(2);

impl Running {
    /// On return all tasks run and the listeners accept connections. Waits for no server: it fails only on problems
    /// that waiting cannot fix.
    pub async fn start(config: &Config, role: Role) -> Result<Self, StartError> {
        let mut parts = Parts::open(config).await?;
        parts.check_settings(config).await?;
        let listeners = Listeners::open(config, role).await?;
        let metrics = metrics::handle();
        let dead_letters = DeadLetters::open(config.queue());
        parts.dead_letters = Some(dead_letters.clone());
        let publisher = listeners.buyers.is_some().then(|| Publisher::open(config.queue()));
        parts.publisher = publisher.clone();

        let mut tasks = Tasks::new();
        let works = (role != Role::Worker, role != Role::Front);
        let (follower, live) = Follower::new(config, parts.store.ahead_of_buyers(1), works);
        let shared_with = (live, tasks.stop_token());
        let shared = Shared::new(config, &parts, dead_letters, auth(config, role), shared_with);
        start::traces::start(config, role, &mut tasks);
        tasks.spawn("the live settings", follower.run(shared.stop.clone()));
        let Addresses { buyers, operations, monitoring } = listeners.addresses(config)?;
        let places = PlaceCheck { gate: parts.gate.clone(), store: parts.store.clone() };
        tasks.spawn("the comparison of the database", places.run(shared.stop.clone()));
        let compared = listeners
            .buyers
            .zip(publisher)
            .map(|(listener, publisher)| start::front::start(&shared, &mut tasks, listener, publisher));
        let consumes = (role != Role::Front).then(|| start::worker::start(&shared, &mut tasks));
        let readiness = start::health::start(&shared, &mut tasks, consumes, compared, &metrics);
        let Listeners { operations: listener, monitoring: second, .. } = listeners;
        let of_sales = parts.sale_gauges.clone();
        let shown =
            Monitoring { readiness, metrics: Arc::new(move || metrics.render() + &of_sales.render()) };
        start::operations::start(&shared, &mut tasks, listener, second, shown);

        tasks.spawn("the login's keys", shared.keys.clone().keep_current(shared.stop.clone()));

        let Shared { control, auth, .. } = shared;
        Ok(Self {
            buyers,
            operations,
            monitoring,
            control,
            auth,
            tasks,
            drain: config.drain(),
            queue: config.queue(),
            parts,
        })
    }

    /// Returns once orders can be published. Fails after `within`.
    pub async fn publisher_is_up(&self, within: Duration) -> Result<(), StartError> {
        let Some(publisher) = &self.parts.publisher else { return Ok(()) };
        tokio::time::timeout(within, publisher.wait_until_up())
            .await
            .map_err(|_| StartError::Broker { within })
    }

    /// Returns when a task has ended without being asked to. The process should then stop: it would look alive and do
    /// nothing.
    pub async fn task_ended(&mut self) -> TaskEnded {
        self.tasks.first_ended().await
    }

    /// Takes no new work, finishes what is in progress within the drain time, and releases what it holds. If the broker
    /// answers, the order log then has every change that was committed: a backup that is restored later finds it there.
    pub async fn stop(mut self) {
        self.tasks.stop(self.drain).await;
        if let Some(publisher) = &self.parts.publisher {
            let log = OrderLog::with(self.queue, publisher.clone());
            let writing = write_last_entries(&self.parts.gate, &self.parts.store, &log);
            match tokio::time::timeout(LAST_ENTRIES_WITHIN, writing).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "changes are left to be written to the order log"),
                Err(_) => {
                    tracing::warn!("changes are left to be written to the order log: no answer in time")
                }
            }
        }
        // Leases that were dropped with their task are released now; otherwise their users would have to wait until
        // the leases expire.
        self.parts.leases.wait_until_idle(Duration::from_secs(1)).await;
        self.parts.store.close().await;
    }
}

/// What a process demands of tokens. A worker serves no buyers and takes operators by their login's public keys: with the
/// secret, somebody who reads a worker's memory could make tokens.
fn auth(config: &Config, role: Role) -> AuthSettings {
    let auth = config.auth();
    if role != Role::Worker {
        return auth;
    }
    let auth = auth.without_secret();
    if !auth.has_key() {
        tracing::info!(
            "this worker has no public key of the login, so its admin API refuses everybody; use a front's"
        );
    }
    auth
}

/// Bound before any task starts, so that a taken address leaves nothing behind.
struct Listeners {
    buyers: Option<TcpListener>,
    operations: TcpListener,
    monitoring: Option<TcpListener>,
}

struct Addresses {
    buyers: Option<SocketAddr>,
    operations: SocketAddr,
    monitoring: Option<SocketAddr>,
}

impl Listeners {
    async fn open(config: &Config, role: Role) -> Result<Self, StartError> {
        let operations = listen("operations", &config.operations.listen).await?;
        let buyers = match role {
            Role::Worker => None,
            Role::Front | Role::Both => Some(listen("front", &config.front.listen).await?),
        };
        let monitoring = match config.operations.monitoring_listen.as_str() {
            "" => None,
            address => Some(listen("monitoring", address).await?),
        };
        Ok(Self { buyers, operations, monitoring })
    }

    /// With the ports that the kernel chose if the configuration says port 0.
    fn addresses(&self, config: &Config) -> Result<Addresses, StartError> {
        let address_of = |listener: &TcpListener| listener.local_addr().ok();
        let buyers = self.buyers.as_ref().and_then(address_of);
        let monitoring = self.monitoring.as_ref().and_then(address_of);
        let operations = self.operations.local_addr().map_err(|source| StartError::Listen {
            what: "operations",
            address: config.operations.listen.clone(),
            source,
        })?;
        Ok(Addresses { buyers, operations, monitoring })
    }
}
