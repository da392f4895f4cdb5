//! The world of a benchmark: private servers with production settings, and fronts and workers as separate
//! processes, as in production.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::{BenchError, broken};
use super::load;
use super::proc::cpu_seconds_of_tree;
use crate::gate::{Gate, GateSettings};
use crate::link::{Installation, RedisSettings};
use crate::queue::QueueSettings;
use crate::rehearsal::servers::{Child, Ending, Folder, Kind, Secret, Server, free_port, start_self};
use crate::store::{Store, StoreSettings};

/// The prefix of keys and queues, in this process and the others.
pub(super) const PREFIX: &str = "bench";

/// How long a process may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// How long one answer about that may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Private servers, and the processes that use them.
pub(super) struct World {
    folder: Folder,
    servers: Vec<Server>,
    children: Vec<Child>,
    pub(super) secret: String,
    /// How many processes have been started; each has a numbered folder.
    started: usize,
}

/// A running front, worker or bare route.
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) buyers: SocketAddr,
    pub(super) operations: SocketAddr,
    /// Its index among the world's children.
    at: usize,
}

/// How to check that a process is ready: the answer to a GET contains a text.
struct Health {
    port: u16,
    path: &'static str,
    ready: &'static str,
}

impl World {
    pub(super) async fn start(kinds: &[Kind]) -> Result<Self, BenchError> {
        let folder = Folder::ephemeral()?;
        let secret = Secret::in_folder(folder.path())?.0;
        let mut servers = Vec::new();
        for kind in kinds {
            servers.push(Server::start(*kind, folder.path()).await?);
        }
        Ok(Self { folder, servers, children: Vec::new(), secret, started: 0 })
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn url(&self, kind: Kind) -> Result<String, BenchError> {
        let server = self.servers.iter().find(|server| server.kind == kind);
        Ok(server.ok_or_else(|| broken("a server was not started"))?.url.clone())
    }

    /// A handle on the database. Redis gets its installation's id, because the benchmark loads sales before the first
    /// process of that installation comes.
    pub(super) async fn store(&self, kind: Kind) -> Result<Store, BenchError> {
        let store = open_store(&self.url(kind)?).await?;
        if kind == Kind::Postgres
            && let Ok(redis) = self.url(Kind::Redis)
            && let Some(id) = store.installation().await.map_err(broken)?
        {
            let mut redis = redis::Client::open(redis.as_str())?.get_multiplexed_async_connection().await?;
            let mut set = redis::cmd("SET");
            set.arg(format!("{PREFIX}:installation")).arg(id.to_string()).arg("NX");
            let _ = set.query_async::<Option<String>>(&mut redis).await?;
        }
        Ok(store)
    }

    pub(super) fn queue(&self) -> Result<QueueSettings, BenchError> {
        Ok(QueueSettings {
            url: self.url(Kind::Rabbitmq)?,
            prefix: PREFIX.into(),
            timeout: Duration::from_secs(30),
            window: 2_000,
            delivery_limit: 50,
            log_hours: 168,
            log_bytes: 5_000 * 1_024 * 1_024,
            installation: Installation::default(),
        })
    }

    pub(super) fn redis(&self) -> Result<RedisSettings, BenchError> {
        Ok(RedisSettings { url: self.url(Kind::Redis)?, timeout: Duration::from_secs(5), member: None })
    }

    pub(super) fn gate(&self) -> Result<Gate, BenchError> {
        let settings = GateSettings {
            redis: self.redis()?,
            prefix: PREFIX.into(),
            outbox_bound: 10_000_000,
            outbox_bound_in_all: 10_000_000,
            batch: 256,
            backlog: 100_000,
            sweep_grace: Duration::from_secs(60),
            overtaken_after: Duration::from_secs(600),
            parked_after: Duration::from_secs(600),
        };
        Gate::open(settings).map_err(broken)
    }

    /// Starts `doorbuster front` or `worker` with `config/default.toml`, overridden by `settings`. Returns when it is
    /// ready.
    pub(super) async fn process(
        &mut self,
        verb: &'static str,
        settings: &[&str],
    ) -> Result<Process, BenchError> {
        let (buyers, operations) = (free_port()?, free_port()?);
        let mut pairs = vec![
            format!("front.listen=127.0.0.1:{buyers}"),
            format!("operations.listen=127.0.0.1:{operations}"),
            format!("redis.prefix={PREFIX}"),
            format!("queue.prefix={PREFIX}"),
            format!("redis.url={}", self.url(Kind::Redis)?),
            format!("queue.url={}", self.url(Kind::Rabbitmq)?),
            format!("database.url={}", self.url(Kind::Postgres)?),
            "log.format=json".to_owned(),
            "log.level=warn".to_owned(),
        ];
        pairs.extend(settings.iter().map(|pair| (*pair).to_owned()));
        let mut arguments = vec![verb.to_owned()];
        arguments.extend(pairs.into_iter().flat_map(|pair| ["--set".to_owned(), pair]));
        let health = Health { port: operations, path: "/readyz", ready: "\"status\":\"ready\"" };
        self.spawn(verb, &arguments, buyers, &health).await
    }

    /// Starts the bare route that the front is compared with.
    pub(super) async fn bare_http(&mut self) -> Result<Process, BenchError> {
        let port = free_port()?;
        let arguments = ["bench".to_owned(), "bare-http".to_owned(), port.to_string()];
        self.spawn("bare-http", &arguments, port, &Health { port, path: "/", ready: "200 OK" }).await
    }

    async fn spawn(
        &mut self,
        name: &'static str,
        arguments: &[String],
        buyers: u16,
        health: &Health,
    ) -> Result<Process, BenchError> {
        self.started += 1;
        let home = self.folder.path().join(format!("{name}-{}", self.started));
        let env = vec![("DOORBUSTER__AUTH__SECRET", self.secret.clone())];
        let child = start_self(name, arguments, env, &home)?;
        let pid = child.pid();
        self.children.push(child);
        let begin = Instant::now();
        let operations = SocketAddr::from(([127, 0, 0, 1], health.port));
        let ready = async || {
            let answer = tokio::time::timeout(ANSWERS_WITHIN, load::get(operations, health.path)).await;
            answer.ok().flatten().is_some_and(|answer| answer.contains(health.ready))
        };
        while !ready().await {
            if begin.elapsed() > READY_WITHIN {
                let log = std::fs::read_to_string(home.join("log")).unwrap_or_default();
                return Err(broken(format!("{name} is not ready after {READY_WITHIN:?}:\n{log}")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let at = self.children.len() - 1;
        Ok(Process { pid, buyers: SocketAddr::from(([127, 0, 0, 1], buyers)), operations, at })
    }

    /// Seconds of CPU that each server and process has used, children included. The last entry, `the load`, is this
    /// process.
    pub(super) fn cpu(&self) -> Result<Vec<(String, f64)>, BenchError> {
        let servers = self.servers.iter().map(|server| (server.kind.name(), server.pid()));
        let ours = self.children.iter().map(|child| (child.name(), child.pid()));
        let all = servers.chain(ours).chain([("the load", std::process::id())]);
        all.map(|(name, pid)| Ok((name.to_owned(), cpu_seconds_of_tree(pid, name != "the load")?))).collect()
    }

    /// Stops the process started last. Any other process keeps running until the world stops.
    pub(super) async fn end(&mut self, process: Process) {
        if process.at + 1 == self.children.len()
            && let Some(child) = self.children.pop()
        {
            child.stop(Ending::Orderly).await;
        }
    }

    pub(super) async fn stop(self) {
        for child in self.children {
            child.stop(Ending::AtOnce).await;
        }
        for server in self.servers {
            server.stop(Ending::AtOnce).await;
        }
    }
}

/// Connects, and creates the tables.
pub(super) async fn open_store(url: &str) -> Result<Store, BenchError> {
    let settings = StoreSettings {
        url: url.to_owned(),
        connections: 8,
        timeout: Duration::from_secs(30),
        installation: Installation::default(),
    };
    let store = Store::connect(&settings).await.map_err(broken)?;
    store.migrate().await.map_err(broken)?;
    Ok(store)
}
