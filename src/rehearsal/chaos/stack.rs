//! The stack under attack: private servers, two fronts and two workers as processes of their own,
//! a proxy on every way between them, and a supervisor that starts again what has died.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::ChaosError;
use super::proxy::Proxy;
use crate::rehearsal::drill::payment_secret;
use crate::rehearsal::servers::{Child, Ending, Kind, Secret, Server, ServerError, free_port, start_self};

/// The ways that can be disturbed. Fronts and workers have ways of their own to each server, so
/// that one may be cut off while the other is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Buyers,
    FrontRedis,
    FrontBroker,
    FrontDatabase,
    WorkerRedis,
    WorkerBroker,
    WorkerDatabase,
}

impl Way {
    pub(super) const ALL: [Way; 7] = [
        Way::Buyers,
        Way::FrontRedis,
        Way::FrontBroker,
        Way::FrontDatabase,
        Way::WorkerRedis,
        Way::WorkerBroker,
        Way::WorkerDatabase,
    ];
}

/// A process of the stack: fronts first, then workers.
pub(super) const PROCESSES: [&str; 4] = ["front", "front", "worker", "worker"];

struct Slot {
    child: Option<Child>,
    /// Its end was wanted.
    killed: bool,
}

#[derive(Clone)]
pub(super) struct Stack {
    shared: Arc<Shared>,
}

struct Shared {
    home: std::path::PathBuf,
    database: Kind,
    proxies: Vec<Proxy>,
    /// Where the drill meets a front's operations listener; never disturbed.
    operations: Proxy,
    arguments: Vec<Vec<String>>,
    secret: String,
    payment_secret: String,
    slots: Mutex<Vec<Slot>>,
    redis: tokio::sync::Mutex<Option<Server>>,
    broker: tokio::sync::Mutex<Option<Server>>,
    data: tokio::sync::Mutex<Option<Server>>,
    /// Processes that ended though nobody wanted them to.
    ended: Mutex<Vec<String>>,
    stop: CancellationToken,
}

impl Stack {
    pub(super) async fn start(home: &Path, database: Kind, settings: &[String]) -> Result<Self, ChaosError> {
        let secret = Secret::in_folder(home)?.0;
        let payment_secret = payment_secret(&secret);
        let (redis, broker, data) = tokio::try_join!(
            Server::start(Kind::Redis, home),
            Server::start(Kind::Rabbitmq, home),
            Server::start(database, home),
        )?;
        let mut proxies = Vec::new();
        for _ in Way::ALL {
            proxies.push(Proxy::open().await.map_err(ServerError::io("opening a proxy"))?);
        }
        let operations = Proxy::open().await.map_err(ServerError::io("opening a proxy"))?;
        let mut arguments = Vec::new();
        let (mut fronts, mut admins) = (Vec::new(), Vec::new());
        for verb in PROCESSES {
            let (listen, admin) = (free_port()?, free_port()?);
            if verb == "front" {
                fronts.push(SocketAddr::from(([127, 0, 0, 1], listen)));
                admins.push(SocketAddr::from(([127, 0, 0, 1], admin)));
            }
            let [to_redis, to_broker, to_data] = match verb {
                "front" => [Way::FrontRedis, Way::FrontBroker, Way::FrontDatabase],
                _ => [Way::WorkerRedis, Way::WorkerBroker, Way::WorkerDatabase],
            }
            .map(|way| proxies[way as usize].address());
            let mut pairs = vec![
                format!("front.listen=127.0.0.1:{listen}"),
                format!("operations.listen=127.0.0.1:{admin}"),
                format!("redis.url=redis://{to_redis}"),
                format!("queue.url=amqp://{to_broker}"),
                format!("database.url={}", at(&data.url, to_data)),
                format!("payments.secrets=drill {payment_secret}"),
                "log.format=json".to_owned(),
            ];
            pairs.extend_from_slice(settings);
            let mut line = vec![verb.to_owned()];
            line.extend(pairs.into_iter().flat_map(|pair| ["--set".to_owned(), pair]));
            arguments.push(line);
        }
        proxies[Way::Buyers as usize].point_to(fronts);
        operations.point_to(admins);
        let stack = Self {
            shared: Arc::new(Shared {
                home: home.to_owned(),
                database,
                proxies,
                operations,
                arguments,
                secret,
                payment_secret,
                slots: Mutex::new(PROCESSES.iter().map(|_| Slot { child: None, killed: false }).collect()),
                redis: tokio::sync::Mutex::new(Some(redis)),
                broker: tokio::sync::Mutex::new(Some(broker)),
                data: tokio::sync::Mutex::new(Some(data)),
                ended: Mutex::default(),
                stop: CancellationToken::new(),
            }),
        };
        for kind in [Kind::Redis, Kind::Rabbitmq, database] {
            stack.point(kind).await;
        }
        stack.migrate().await?;
        for nth in 0..PROCESSES.len() {
            stack.start_process(nth)?;
        }
        tokio::spawn(supervise(stack.clone()));
        Ok(stack)
    }

    pub(super) fn secret(&self) -> &str {
        &self.shared.secret
    }

    /// The payment provider's.
    pub(super) fn payment_secret(&self) -> &str {
        &self.shared.payment_secret
    }

    pub(super) fn buyers(&self) -> SocketAddr {
        self.way(Way::Buyers).address()
    }

    pub(super) fn operations(&self) -> SocketAddr {
        self.shared.operations.address()
    }

    pub(super) fn way(&self, way: Way) -> &Proxy {
        &self.shared.proxies[way as usize]
    }

    pub(super) fn database(&self) -> Kind {
        self.shared.database
    }

    fn server(&self, kind: Kind) -> &tokio::sync::Mutex<Option<Server>> {
        match kind {
            Kind::Redis => &self.shared.redis,
            Kind::Rabbitmq => &self.shared.broker,
            Kind::Postgres | Kind::Mariadb => &self.shared.data,
        }
    }

    /// Where a server answers, past the proxies.
    pub(super) async fn url(&self, kind: Kind) -> Option<String> {
        self.server(kind).lock().await.as_ref().map(|server| server.url.clone())
    }

    pub(super) async fn pid(&self, kind: Kind) -> Option<u32> {
        self.server(kind).lock().await.as_ref().map(Server::pid)
    }

    /// Of the broker's own control program.
    pub(super) async fn control_broker(&self, arguments: &[&str]) -> Result<(), ServerError> {
        match &*self.shared.broker.lock().await {
            Some(broker) => broker.control(arguments).await,
            None => Err(ServerError::Missing("rabbitmq-server")),
        }
    }

    /// kill -9, and a new start on the same data, which goes on in the background.
    pub(super) async fn kill_server(&self, kind: Kind) -> Result<(), String> {
        let mut slot = self.server(kind).lock().await;
        let server = slot.take().ok_or("it is down")?;
        server.stop(Ending::AtOnce).await;
        drop(slot);
        let stack = self.clone();
        tokio::spawn(async move {
            let mut slot = stack.server(kind).lock().await;
            while !stack.shared.stop.is_cancelled() {
                // A database may not start before the last process of its predecessor has gone.
                match Server::start(kind, &stack.shared.home).await {
                    Ok(server) => {
                        *slot = Some(server);
                        break;
                    }
                    Err(error) => tracing::warn!(%error, "a server did not start, will try again"),
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            drop(slot);
            stack.point(kind).await;
        });
        Ok(())
    }

    /// Returns when every server answers its protocol, and every process runs.
    pub(super) async fn all_answer(&self) {
        for kind in [Kind::Redis, Kind::Rabbitmq, self.shared.database] {
            while self.server(kind).lock().await.is_none() && !self.shared.stop.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let all_run =
            || self.slots().iter().all(|slot| slot.child.as_ref().is_some_and(|child| !child.has_ended()));
        while !all_run() && !self.shared.stop.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Leads the ways to where the server answers now.
    async fn point(&self, kind: Kind) {
        let Some(url) = self.url(kind).await else { return };
        let address = url.split(['/', '@']).find_map(|part| part.parse::<SocketAddr>().ok());
        let ways = match kind {
            Kind::Redis => [Way::FrontRedis, Way::WorkerRedis],
            Kind::Rabbitmq => [Way::FrontBroker, Way::WorkerBroker],
            Kind::Postgres | Kind::Mariadb => [Way::FrontDatabase, Way::WorkerDatabase],
        };
        for way in ways {
            self.way(way).point_to(address.into_iter().collect());
        }
    }

    async fn migrate(&self) -> Result<(), ChaosError> {
        let url = self.url(self.shared.database).await.unwrap_or_default();
        let settings = crate::store::StoreSettings { url, connections: 1, timeout: Duration::from_secs(30) };
        let store = crate::store::Store::connect(&settings).await?;
        store.migrate().await?;
        store.close().await;
        Ok(())
    }

    fn start_process(&self, nth: usize) -> Result<(), ServerError> {
        let home = self.shared.home.join(format!("{}-{nth}", PROCESSES[nth]));
        let env = vec![("DOORBUSTER__AUTH__SECRET", self.shared.secret.clone())];
        let child = start_self(PROCESSES[nth], &self.shared.arguments[nth], env, &home)?;
        self.slots()[nth] = Slot { child: Some(child), killed: false };
        Ok(())
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Vec<Slot>> {
        self.shared.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Sends a signal to a process. Those that end it are followed by a new start.
    pub(super) fn signal(&self, nth: usize, signal: rustix::process::Signal) -> Result<(), String> {
        use rustix::process::{Pid, Signal, kill_process};
        let mut slots = self.slots();
        let slot = &mut slots[nth];
        let child = slot.child.as_ref().filter(|child| !child.has_ended());
        let pid = child.and_then(|child| Pid::from_raw(child.pid().cast_signed())).ok_or("it is down")?;
        slot.killed |= signal == Signal::KILL || signal == Signal::TERM;
        kill_process(pid, signal).map_err(|error| error.to_string())
    }

    /// Processes that ended though nobody wanted them to.
    pub(super) fn ended(&self) -> Vec<String> {
        self.shared.ended.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    pub(super) async fn stop(&self) {
        self.shared.stop.cancel();
        let children: Vec<Child> = self.slots().iter_mut().filter_map(|slot| slot.child.take()).collect();
        for child in children {
            child.stop(Ending::AtOnce).await;
        }
        for kind in [Kind::Redis, Kind::Rabbitmq, self.shared.database] {
            if let Some(server) = self.server(kind).lock().await.take() {
                server.stop(Ending::AtOnce).await;
            }
        }
    }
}

/// Starts again what has died, as systemd or Kubernetes would.
async fn supervise(stack: Stack) {
    loop {
        let pause = tokio::time::sleep(Duration::from_millis(100));
        if stack.shared.stop.run_until_cancelled(pause).await.is_none() {
            return;
        }
        for (nth, verb) in PROCESSES.iter().enumerate() {
            let (ended, killed) = {
                let slots = stack.slots();
                (slots[nth].child.as_ref().is_none_or(Child::has_ended), slots[nth].killed)
            };
            if !ended || stack.shared.stop.is_cancelled() {
                continue;
            }
            if !killed {
                let mut ended = stack.shared.ended.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                ended.push(format!("{verb}-{nth} ended by itself"));
            }
            if let Err(error) = stack.start_process(nth) {
                tracing::error!(%error, "a process could not be started");
            }
        }
    }
}

/// The same URL with another address.
fn at(url: &str, address: SocketAddr) -> String {
    match url.split(['/', '@']).find(|part| part.parse::<SocketAddr>().is_ok()) {
        Some(part) => url.replacen(part, &address.to_string(), 1),
        None => url.to_owned(),
    }
}
