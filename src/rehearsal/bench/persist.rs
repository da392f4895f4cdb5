//! From the queue to the rows: one worker empties a backlog, next to bare batches of the same rows. Also each
//! database's store, next to one order per transaction.

use std::time::{Duration, Instant};

use super::error::{BenchError, broken};
use super::orders::{publish, until_persisted, waiting};
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, attempt, open_sale, sale};
use super::world::{World, open_store};
use super::{bare_sql, cost};
use crate::domain::Sale;
use crate::gate::Gate;
use crate::queue::Publisher;
use crate::rehearsal::servers::Kind;
use crate::store::{Claim, Store};

/// Orders waiting when the worker starts.
pub(super) const BACKLOG: u64 = 100_000;
/// Orders in a round with one order per transaction: fewer, because this is slow.
const SINGLY: u64 = 2_000;
/// Orders per transaction, here and in the ceiling.
const BATCH: usize = 800;
/// Concurrent transactions, here and in the ceiling.
const LANES: u64 = 4;
/// Rounds of each measurement.
const ROUNDS: u64 = 3;

/// One worker process empties a backlog into PostgreSQL.
pub(super) async fn backlog(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let gate = world.gate()?;
    let store = world.store(Kind::Postgres).await?;
    let publisher = Publisher::open(world.queue()?);
    publisher.wait_until_up().await;
    let url = world.url(Kind::Postgres)?;
    let (mut beside_batches, mut beside_single) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        announce(&format!("a backlog of {BACKLOG}, round {} of {ROUNDS}", round + 1));
        let batches = bare_sql::batches(&url, &format!("bare-{round}"), BACKLOG, BATCH, LANES).await?;
        let single = bare_sql::batches(&url, &format!("single-{round}"), SINGLY, 1, 1).await?;
        let sale = sale(&format!("backlog-{round}"), PLENTY)?;
        open_sale(&gate, &store, &sale).await?;
        publish(&gate, &publisher, &sale, 0..BACKLOG).await?;
        let before = world.cpu()?;
        let (worker, (waiting, begin)) =
            tokio::try_join!(world.process("worker", &[]), first_batches(&gate, &sale))?;
        until_persisted(&gate, &sale).await?;
        let rate = waiting as f64 / begin.elapsed().as_secs_f64();
        let after = world.cpu()?;
        let own = after.iter().rev().nth(1).cloned().into_iter();
        let before: Vec<_> = before.into_iter().chain(own.clone().map(|(name, _)| (name, 0.0))).collect();
        let after: Vec<_> = after.iter().filter(|(name, _)| name != "worker").cloned().chain(own).collect();
        announce(&cost::per_order(&before, &after, BACKLOG));
        world.end(worker).await;
        beside_batches.push((rate, batches));
        beside_single.push((rate, single));
    }
    Ok(vec![
        Figure::beside(
            "persisted, a backlog of 100,000; bare batches",
            "orders/s",
            beside_batches,
            Wanted::Ratio(0.6),
        ),
        Figure::beside(
            "the same; one order per transaction, one connection",
            "orders/s",
            beside_single,
            Wanted::Ratio(10.0),
        ),
    ])
}

/// When the first batches have been persisted, and how many orders are left, so that the start-up time of a process
/// does not count.
pub(super) async fn first_batches(gate: &Gate, sale: &Sale) -> Result<(u64, Instant), BenchError> {
    loop {
        let waiting = waiting(gate, sale).await?;
        if waiting < BACKLOG {
            return Ok((waiting, Instant::now()));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The store alone on each database, one batch after another.
pub(super) async fn stores(world: &World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let sqlite = format!("sqlite:{}", world.folder().join("bench.db").display());
    let mut figures = Vec::new();
    for (what, url) in [
        ("the store alone, SQLite; one order per transaction", sqlite),
        ("the store alone, MariaDB; one order per transaction", world.url(Kind::Mariadb)?),
        ("the store alone, PostgreSQL; one order per transaction", world.url(Kind::Postgres)?),
    ] {
        announce(what);
        let store = open_store(&url).await?;
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let sale = sale(&format!("store-{round}"), PLENTY)?;
            store.create_sale(&sale).await.map_err(broken)?;
            let single = record(&store, &sale, 0..SINGLY, 1).await?;
            let batches = record(&store, &sale, SINGLY..SINGLY + 20_000, BATCH).await?;
            rounds.push((batches, single));
        }
        figures.push(Figure::beside(what, "orders/s", rounds, Wanted::Informational));
        store.close().await;
    }
    Ok(figures)
}

async fn record(
    store: &Store,
    sale: &Sale,
    buyers: std::ops::Range<u64>,
    batch: usize,
) -> Result<f64, BenchError> {
    let count = buyers.end - buyers.start;
    let claims: Vec<Claim> = buyers
        .map(|nth| {
            let number = crate::domain::Number { epoch: 1, seq: i64::try_from(nth).unwrap_or(0) + 2 };
            let order = attempt(sale, nth)?.admitted(number, 1, crate::domain::Millis::now());
            Ok(Claim { order, fence: 1 })
        })
        .collect::<Result<_, BenchError>>()?;
    let begin = Instant::now();
    for claims in claims.chunks(batch) {
        store.record(claims, &|| true).await.map_err(broken)?;
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}
