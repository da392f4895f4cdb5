//! What the benchmarks run on: private servers with the settings of production, and fronts and workers as
//! processes of their own, as they are where orders are sold.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{BenchError, broken};
use crate::domain::{
    Attempt, Fingerprint, Item, KeyDigest, Millis, Number, OrderId, Sale, SaleId, SaleState, Sku, Terms,
    UserId, Window,
};
use crate::gate::{Gate, GateSettings, Versions};
use crate::link::RedisSettings;
use crate::queue::QueueSettings;
use crate::rehearsal::servers::{Child, Ending, Folder, Kind, Secret, Server, free_port, start_self};
use crate::store::{Store, StoreSettings};

/// The prefix of keys and queues, here and in the processes.
pub(super) const PREFIX: &str = "bench";

/// Until a process that was started answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Units of a sale that is not to be sold out.
pub(super) const PLENTY: u32 = 100_000_000;

/// Private servers of the kinds asked for, and their addresses.
pub(super) struct World {
    folder: Folder,
    servers: Vec<Server>,
    children: Vec<Child>,
    pub(super) secret: String,
    /// One name for each process: its folder.
    started: usize,
}

/// A process of ours that serves.
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) buyers: SocketAddr,
    pub(super) operations: SocketAddr,
    at: usize,
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

    pub(super) async fn store(&self, kind: Kind) -> Result<Store, BenchError> {
        open_store(&self.url(kind)?).await
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
        })
    }

    pub(super) fn redis(&self) -> Result<RedisSettings, BenchError> {
        Ok(RedisSettings { url: self.url(Kind::Redis)?, timeout: Duration::from_secs(5) })
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

    /// Starts `doorbuster front` or `worker` with `config/default.toml`, `settings` over it, and returns
    /// when it is ready.
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
        let env = vec![("DOORBUSTER__AUTH__SECRET", self.secret.clone())];
        self.spawn(verb, arguments, env, buyers, operations, ("/readyz", "\"status\":\"ready\"")).await
    }

    /// The bare route that the front is compared with.
    pub(super) async fn bare_http(&mut self) -> Result<Process, BenchError> {
        let port = free_port()?;
        let arguments = vec!["bench".to_owned(), "bare-http".to_owned(), port.to_string()];
        self.spawn("bare-http", arguments, Vec::new(), port, port, ("/", "200 OK")).await
    }

    async fn spawn(
        &mut self,
        name: &'static str,
        arguments: Vec<String>,
        env: Vec<(&'static str, String)>,
        buyers: u16,
        health: u16,
        (path, ready): (&str, &str),
    ) -> Result<Process, BenchError> {
        self.started += 1;
        let home = self.folder.path().join(format!("{name}-{}", self.started));
        let child = start_self(name, &arguments, env, &home)?;
        let pid = child.pid();
        self.children.push(child);
        let begin = Instant::now();
        let operations = SocketAddr::from(([127, 0, 0, 1], health));
        while !super::load::get(operations, path).await.is_some_and(|answer| answer.contains(ready)) {
            if begin.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(home.join("log")).unwrap_or_default();
                return Err(broken(format!("{name} is not ready after {PATIENCE:?}:\n{log}")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let at = self.children.len() - 1;
        Ok(Process { pid, buyers: SocketAddr::from(([127, 0, 0, 1], buyers)), operations, at })
    }

    /// Seconds of CPU that each server and process of ours has used, children included; the last is this
    /// process, which makes the load.
    pub(super) fn cpu(&self) -> Result<Vec<(String, f64)>, BenchError> {
        let servers = self.servers.iter().map(|server| (server.kind.name(), server.pid()));
        let ours = self.children.iter().map(|child| (child.name(), child.pid()));
        let all = servers.chain(ours).chain([("the load", std::process::id())]);
        all.map(|(name, pid)| Ok((name.to_owned(), tree_seconds(pid, name != "the load")?))).collect()
    }

    /// Ends the last process that was started.
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

/// Of a process, and with `children` of those that it has: PostgreSQL has one for each connection.
fn tree_seconds(pid: u32, children: bool) -> Result<f64, BenchError> {
    let mut seconds = super::cpu_seconds(pid)?;
    if children {
        let tasks = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        for child in tasks.split_whitespace().filter_map(|child| child.parse().ok()) {
            seconds += tree_seconds(child, true).unwrap_or(0.0);
        }
    }
    Ok(seconds)
}

pub(super) async fn open_store(url: &str) -> Result<Store, BenchError> {
    let settings = StoreSettings { url: url.to_owned(), connections: 8, timeout: Duration::from_secs(30) };
    let store = Store::connect(&settings).await.map_err(broken)?;
    store.migrate().await.map_err(broken)?;
    Ok(store)
}

/// A sale of one item, one unit for each buyer.
pub(super) fn sale(id: &str, stock: u32) -> Result<Sale, BenchError> {
    Ok(Sale {
        id: SaleId::parse(id).map_err(broken)?,
        name: "Drop".into(),
        window: Window { opens_at: Millis(0), closes_at: None },
        limit_per_user: 1,
        terms: Terms::default(),
        items: vec![Item {
            sku: Sku::parse("shoe").map_err(broken)?,
            stock: i64::from(stock),
            limit_per_user: None,
        }],
    })
}

/// In the database and in the gate, selling.
pub(super) async fn open_sale(gate: &Gate, store: &Store, sale: &Sale) -> Result<(), BenchError> {
    store.create_sale(sale).await.map_err(broken)?;
    gate.load(sale, &Versions::default()).await.map_err(broken)?;
    gate.move_sale(&sale.id, SaleState::Open, &[SaleState::Draft]).await.map_err(broken)?;
    store.set_sale_state(&sale.id, SaleState::Open, Number { epoch: 1, seq: 1 }).await.map_err(broken)
}

/// The nth buyer. The names have 16 characters.
pub(super) fn user(nth: u64) -> Result<UserId, BenchError> {
    UserId::parse(format!("buyer-{nth:010}")).map_err(broken)
}

/// What the nth buyer asks of the gate: one unit of the sale's only item.
pub(super) fn attempt(sale: &Sale, nth: u64) -> Result<Attempt, BenchError> {
    let sku = sale.items[0].sku.clone();
    Ok(Attempt {
        id: OrderId::generate(),
        sale: sale.id.clone(),
        user: user(nth)?,
        fingerprint: Fingerprint::of_body(&sku, 1),
        sku,
        quantity: 1,
        key: KeyDigest::of_key(None),
        keyed: false,
    })
}
