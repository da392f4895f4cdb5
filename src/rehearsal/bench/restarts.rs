//! What restarts of the worker cost in a backlog: each returns what the broker had lent, and a message that was lent three
//! times must not be taken for one that crashes its worker.

use std::time::{Duration, Instant};

use super::error::BenchError;
use super::orders::{publish, waiting};
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, open_sale, sale};
use super::world::World;
use crate::domain::Sale;
use crate::gate::Gate;
use crate::queue::Publisher;
use crate::rehearsal::servers::Kind;

/// Orders waiting when the first worker starts.
const BACKLOG: u64 = 200_000;
/// Restarts in a backlog.
const RESTARTS: u64 = 3;
/// Rounds of each measurement.
const ROUNDS: u64 = 3;

/// The rate of a worker that is restarted several times, next to one that is not. The time without a worker does not
/// count.
pub(super) async fn restarts(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let gate = world.gate()?;
    let store = world.store(Kind::Postgres).await?;
    let publisher = Publisher::open(world.queue()?);
    publisher.wait_until_up().await;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        announce(&format!("a backlog of {BACKLOG}, round {} of {ROUNDS}", round + 1));
        let mut rates = Vec::new();
        for restarts in [RESTARTS, 0] {
            let sale = sale(&format!("restarts-{round}-{restarts}"), PLENTY)?;
            open_sale(&gate, &store, &sale).await?;
            publish(&gate, &publisher, &sale, 0..BACKLOG).await?;
            rates.push(empty(world, &gate, &sale, restarts).await?);
        }
        rounds.push((rates[0], rates[1]));
    }
    Ok(vec![Figure::beside(
        "a backlog of 200,000, three restarts of the worker; none",
        "orders/s",
        rounds,
        Wanted::Ratio(0.9),
    )])
}

/// The orders per second of the workers that empty the backlog, one after another.
async fn empty(world: &mut World, gate: &Gate, sale: &Sale, restarts: u64) -> Result<f64, BenchError> {
    let (mut persisted, mut worked) = (0, Duration::ZERO);
    for restart in 0..=restarts {
        let goal = BACKLOG - BACKLOG * (restart + 1) / (restarts + 1);
        let start = waiting(gate, sale).await?;
        // It works before it is known to be ready.
        let working = async {
            let first = until_at_most(gate, sale, start.saturating_sub(1)).await?;
            let begin = Instant::now();
            let last = until_at_most(gate, sale, goal).await?;
            Ok((first - last, begin.elapsed()))
        };
        let (worker, (orders, time)) = tokio::try_join!(world.process("worker", &[]), working)?;
        persisted += orders;
        worked += time;
        world.end(worker).await;
    }
    Ok(persisted as f64 / worked.as_secs_f64())
}

/// Returns the orders that wait, once they are at most `most`.
async fn until_at_most(gate: &Gate, sale: &Sale, most: u64) -> Result<u64, BenchError> {
    loop {
        let waiting = waiting(gate, sale).await?;
        if waiting <= most {
            return Ok(waiting);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
