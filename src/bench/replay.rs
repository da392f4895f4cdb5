//! Replaying the order log into a database that has half of it already, beside the workers' ordinary rate.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::report::{Figure, Report, Wanted};
use super::{BenchError, broken};
use crate::dev::{Ending, Folder, Kind, Server};
use crate::domain::{
    Attempt, Fingerprint, Item, KeyDigest, Millis, Number, Order, OrderId, Rules, Sale, SaleId, SaleState,
    Sku, UserId, Verdict, Window,
};
use crate::gate::{Gate, GateSettings, Versions};
use crate::lease::Leases;
use crate::life::write_log;
use crate::link::RedisSettings;
use crate::queue::{Consumer, Letters, OrderLog, Publisher, QueueSettings};
use crate::replay::{Asked, Filter, Progress, Replay, Source};
use crate::store::{Store, StoreSettings};
use crate::worker::{Worker, WorkerSettings};

const ORDERS: u64 = 100_000;

/// Attempts in one script call, and orders that are published at once.
const AT_ONCE: u64 = 500;

/// Measures on private servers, with the settings of `config/default.toml`. Takes about a minute.
pub async fn run(tell: impl Fn(&str)) -> Result<Report, BenchError> {
    let folder = Folder::ephemeral()?;
    let mut servers = Vec::new();
    let measured = measure(&folder, &mut servers, tell).await;
    for server in servers {
        server.stop(Ending::AtOnce).await;
    }
    Ok(Report { bench: "replay", figures: vec![measured?] })
}

async fn measure(
    folder: &Folder,
    servers: &mut Vec<Server>,
    tell: impl Fn(&str),
) -> Result<Figure, BenchError> {
    tell("starting Redis, RabbitMQ and two PostgreSQL");
    let mut urls = Vec::new();
    for (kind, name) in [
        (Kind::Redis, "redis"),
        (Kind::Rabbitmq, "broker"),
        (Kind::Postgres, "one"),
        (Kind::Postgres, "other"),
    ] {
        let folder = folder.path().join(name);
        std::fs::create_dir_all(&folder).map_err(broken)?;
        let server = Server::start(kind, &folder).await?;
        urls.push(server.url.clone());
        servers.push(server);
    }
    let stack = Stack::open(&urls[0], &urls[1], &urls[2]).await?;
    let other = store(&urls[3]).await?;

    tell("accepting and publishing 100,000 orders");
    let sale = stack.sale().await?;
    stack.fill(&sale).await?;
    tell("persisting them");
    let persisted = stack.persist(&sale.id).await?;
    write_log(&stack.replay.store, &stack.replay.log).await.map_err(broken)?;

    tell("replaying half of them into the other database");
    let replay = Replay { store: other, ..stack.replay.clone() };
    replay_log(&replay, Some(ORDERS / 2)).await?;
    tell("replaying all of them");
    let begin = Instant::now();
    replay_log(&replay, None).await?;
    let replayed = ORDERS as f64 / begin.elapsed().as_secs_f64();
    let live = replay.store.totals(&sale.id).await.map_err(broken)?.live_orders;
    if live != ORDERS {
        return Err(BenchError::Broken(format!("{live} orders are there, and not {ORDERS}")));
    }
    Ok(Figure {
        what: "replaying 100,000 orders, half there; beside workers",
        unit: "orders/s",
        measured: replayed,
        ceiling: Some(persisted),
        wanted: Wanted::Ratio(0.5),
    })
}

async fn store(url: &str) -> Result<Store, BenchError> {
    let settings = StoreSettings { url: url.to_owned(), connections: 8, timeout: Duration::from_secs(30) };
    let store = Store::connect(&settings).await.map_err(broken)?;
    store.migrate().await.map_err(broken)?;
    Ok(store)
}

struct Stack {
    replay: Replay,
    queue: QueueSettings,
}

impl Stack {
    async fn open(redis: &str, broker: &str, database: &str) -> Result<Self, BenchError> {
        let redis = RedisSettings { url: redis.to_owned(), timeout: Duration::from_secs(5) };
        let queue = QueueSettings {
            url: broker.to_owned(),
            prefix: "bench".into(),
            timeout: Duration::from_secs(30),
            window: 2_000,
            delivery_limit: 50,
            log_hours: 24,
            log_bytes: 5_000_000_000,
        };
        let gate = Gate::open(GateSettings {
            redis: redis.clone(),
            prefix: "bench".into(),
            outbox_bound: 2 * ORDERS,
            outbox_bound_in_all: 2 * ORDERS,
            batch: 128,
            backlog: 10_000,
            sweep_grace: Duration::from_secs(60),
            overtaken_after: Duration::from_secs(600),
            parked_after: Duration::from_secs(600),
        })
        .map_err(broken)?;
        let publisher = Publisher::open(queue.clone());
        publisher.wait_until_up().await;
        let replay = Replay {
            gate,
            store: store(database).await?,
            leases: Leases::open(&redis, "bench")?,
            letters: Letters::open(queue.clone()),
            log: OrderLog::with(queue.clone(), publisher.clone()),
            publisher,
        };
        Ok(Self { replay, queue })
    }

    async fn sale(&self) -> Result<Sale, BenchError> {
        let sale = Sale {
            id: SaleId::parse("drop").map_err(broken)?,
            name: "Drop".into(),
            window: Window { opens_at: Millis(0), closes_at: None },
            limit_per_user: 1,
            rules: Rules::default(),
            items: vec![Item {
                sku: Sku::parse("shoe").map_err(broken)?,
                stock: i64::try_from(ORDERS).unwrap_or(i64::MAX),
                limit_per_user: None,
            }],
        };
        let Replay { gate, store, .. } = &self.replay;
        store.create_sale(&sale).await.map_err(broken)?;
        gate.load(&sale, &Versions::default()).await.map_err(broken)?;
        gate.move_to(&sale.id, SaleState::Open, &[SaleState::Draft]).await.map_err(broken)?;
        let number = Number { epoch: 1, seq: 1 };
        store.set_sale_state(&sale.id, SaleState::Open, number).await.map_err(broken)?;
        Ok(sale)
    }

    /// Orders in the gate's outbox, in the queue and in the log.
    async fn fill(&self, sale: &Sale) -> Result<(), BenchError> {
        let sku = sale.items[0].sku.clone();
        for from in (0..ORDERS).step_by(AT_ONCE as usize) {
            let attempts: Vec<Attempt> = (from..from + AT_ONCE)
                .map(|nth| {
                    Ok(Attempt {
                        id: OrderId::generate(),
                        sale: sale.id.clone(),
                        user: UserId::parse(format!("user-{nth}")).map_err(broken)?,
                        fingerprint: Fingerprint::of_body(&sku, 1),
                        sku: sku.clone(),
                        quantity: 1,
                        key: KeyDigest::of_key(None),
                        keyed: false,
                    })
                })
                .collect::<Result<_, BenchError>>()?;
            let verdicts = self.replay.gate.admit_all(&sale.id, &attempts).await.map_err(broken)?;
            let mut orders: Vec<Order> = Vec::with_capacity(attempts.len());
            for verdict in verdicts {
                match verdict.map_err(broken)? {
                    Verdict::Accepted(order) => orders.push(order),
                    other => return Err(BenchError::Broken(format!("not accepted: {other:?}"))),
                }
            }
            let publishing =
                orders.iter().map(|order| self.replay.publisher.publish(std::slice::from_ref(order)));
            for published in futures_util::future::join_all(publishing).await {
                published.map_err(broken)?;
            }
        }
        Ok(())
    }

    /// Orders per second of one worker that empties the queue.
    async fn persist(&self, sale: &SaleId) -> Result<f64, BenchError> {
        let stop = CancellationToken::new();
        let Replay { gate, store, leases, letters, .. } = self.replay.clone();
        let settings = WorkerSettings {
            batch: 800,
            lanes: 4,
            linger: Duration::from_millis(20),
            lease: Duration::from_secs(5),
            hold: Duration::from_secs(10),
        };
        let worker = Worker { gate, leases, store, letters, settings };
        let begin = Instant::now();
        let working = tokio::spawn(worker.run(Consumer::new(self.queue.clone(), 1_000), stop.clone()));
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            // By the gate: counting rows would take the database's time.
            let waiting = self.replay.gate.describe(sale).await.map_err(broken)?;
            if waiting.is_some_and(|gate| gate.waiting == 0) {
                break;
            }
            if begin.elapsed() > Duration::from_secs(300) {
                return Err(BenchError::Broken("the queue is not empty after five minutes".into()));
            }
        }
        let rate = ORDERS as f64 / begin.elapsed().as_secs_f64();
        stop.cancel();
        working.await.map_err(broken)?;
        Ok(rate)
    }
}

async fn replay_log(replay: &Replay, limit: Option<u64>) -> Result<(), BenchError> {
    let asked = Asked {
        source: Source::Log,
        filter: Filter { limit, ..Default::default() },
        rate: None,
        max_queue: u32::MAX,
        max_latency_ms: u64::MAX / 2,
        max_replays: 3,
    };
    let progress = Progress { tell: &|_, _| {}, say: &|_| {} };
    let done = replay.run(&asked, "bench", &progress, CancellationToken::new()).await.map_err(broken)?;
    let wanted = limit.unwrap_or(ORDERS);
    if done.report.counts.orders() != wanted || done.report.counts.left() > 0 {
        return Err(BenchError::Broken(format!("{wanted} orders were to be replayed: {:?}", done.report)));
    }
    Ok(())
}
