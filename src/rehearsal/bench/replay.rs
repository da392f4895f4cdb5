//! Replays the order log into a database that already has half of the orders, next to the workers' ordinary rate.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::{BenchError, broken};
use super::orders::{publish, until_persisted};
use super::report::{Figure, Report, Wanted};
use super::sample::{PLENTY, open_sale, sale};
use super::world::{PREFIX, World};
use crate::domain::Sale;
use crate::lease::Leases;
use crate::maintenance::write_log;
use crate::queue::{Consumer, DeadLetters, OrderLog, Publisher};
use crate::recovery::replay::{Filter, Progress, Replay, ReplayRequest, Source};
use crate::rehearsal::servers::Kind;
use crate::telemetry::SaleGauges;
use crate::worker::{Worker, WorkerPace, WorkerSettings};

/// Orders in the log.
const ORDERS: u64 = 100_000;

/// Measures on private servers with the settings of `config/default.toml`. Takes about a minute.
pub async fn run(announce: impl Fn(&str)) -> Result<Report, BenchError> {
    announce("starting Redis, RabbitMQ and two PostgreSQL");
    let world = World::start(&[Kind::Redis, Kind::Rabbitmq, Kind::Postgres]).await?;
    let measured = match World::start(&[Kind::Postgres]).await {
        Ok(other) => {
            let measured = measure(&world, &other, announce).await;
            other.stop().await;
            measured
        }
        Err(error) => Err(error),
    };
    world.stop().await;
    Ok(Report { bench: "replay", figures: vec![measured?], unfinished: None })
}

async fn measure(world: &World, other: &World, announce: impl Fn(&str)) -> Result<Figure, BenchError> {
    let publisher = Publisher::open(world.queue()?);
    publisher.wait_until_up().await;
    let replay = Replay {
        gate: world.gate()?,
        store: world.store(Kind::Postgres).await?,
        leases: Leases::open(&world.redis()?, PREFIX)?,
        dead_letters: DeadLetters::open(world.queue()?),
        log: OrderLog::with(world.queue()?, publisher.clone()),
        publisher,
    };
    announce("accepting and publishing 100,000 orders");
    let sale = sale("drop", PLENTY)?;
    open_sale(&replay.gate, &replay.store, &sale).await?;
    publish(&replay.gate, &replay.publisher, &sale, 0..ORDERS).await?;
    announce("persisting them");
    let persisted = persist(world, &replay, &sale).await?;
    write_log(&replay.store, &replay.log).await.map_err(broken)?;

    let replay = Replay { store: other.store(Kind::Postgres).await?, ..replay };
    announce("replaying half of them into the other database");
    replay_log(&replay, Some(ORDERS / 2)).await?;
    announce("replaying all of them");
    let begin = Instant::now();
    replay_log(&replay, None).await?;
    let replayed = ORDERS as f64 / begin.elapsed().as_secs_f64();
    let live = replay.store.totals(&sale.id).await.map_err(broken)?.live_orders;
    if live != ORDERS {
        return Err(broken(format!("{live} orders are there, and not {ORDERS}")));
    }
    Ok(Figure {
        what: "replaying 100,000 orders, half there; a worker",
        unit: "orders/s",
        measured: replayed,
        ceiling: Some(persisted),
        wanted: Wanted::Ratio(0.5),
    })
}

/// Orders per second of one worker that empties the queue. Like the replay, it runs in this process.
async fn persist(world: &World, replay: &Replay, sale: &Sale) -> Result<f64, BenchError> {
    let stop = CancellationToken::new();
    let Replay { gate, store, leases, dead_letters, .. } = replay.clone();
    let settings = WorkerSettings {
        batch: 800,
        linger: Duration::from_millis(20),
        hold: Duration::from_secs(10),
        put_off_every: Duration::from_secs(60),
    };
    let (_, pace) = watch::channel(WorkerPace { lanes: 4, lease: Duration::from_secs(5), persist: true });
    let worker = Worker { gate, leases, store, dead_letters, gauges: SaleGauges::default(), settings, pace };
    let begin = Instant::now();
    let working = tokio::spawn(worker.run(Consumer::new(world.queue()?, 6_400), stop.clone()));
    until_persisted(&replay.gate, sale).await?;
    let rate = ORDERS as f64 / begin.elapsed().as_secs_f64();
    stop.cancel();
    working.await.map_err(broken)?;
    Ok(rate)
}

/// Replays the first `limit` orders of the log, or all of them, and checks that none is left.
async fn replay_log(replay: &Replay, limit: Option<u64>) -> Result<(), BenchError> {
    let request = ReplayRequest {
        source: Source::Log,
        filter: Filter { limit, ..Default::default() },
        rate: None,
        max_queue: u32::MAX,
        max_latency_ms: u64::MAX / 2,
        max_replays: 3,
        accept_loss: false,
    };
    let progress = Progress { advance: &|_, _| {}, read: &|_, _| {}, say: &|_| {} };
    let done = replay.run(&request, "bench", &progress, CancellationToken::new()).await.map_err(broken)?;
    let wanted = limit.unwrap_or(ORDERS);
    if done.report.counts.orders() != wanted || done.report.counts.left() > 0 {
        return Err(broken(format!("{wanted} orders were to be replayed: {:?}", done.report)));
    }
    Ok(())
}
