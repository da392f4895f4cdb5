//! How the cost of an order grows: after a million others, and with a thousand sales at once.

use std::time::Instant;

use super::cost;
use super::error::{BenchError, broken};
use super::memory::used_memory;
use super::orders::{accept, publish, until_persisted};
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, open_sale, sale};
use super::stats::middle_round;
use super::world::{Process, World};
use crate::domain::{Order, Sale};
use crate::gate::Gate;
use crate::queue::Publisher;
use crate::rehearsal::servers::Kind;

/// Orders in a small step.
const FEW: u64 = 10_000;
/// Orders in all large steps together.
const MANY: u64 = 1_000_000;
/// Rounds, alternating between new servers and those with many orders. Other work on the machine changes half a
/// second of work by more than the difference that we measure.
const ROUNDS: u64 = 5;
/// Orders, first in one sale and then over all sales.
const SPREAD: u64 = 100_000;
/// Sales at once.
const SALES: u64 = 1_000;

/// The path of an order into one world's gate and queue.
struct Intake {
    gate: Gate,
    publisher: Publisher,
}

/// The cost of orders from the gate to the row.
struct Cost {
    /// Microseconds of CPU per order, not counting this process.
    micros: f64,
    /// Bytes in Redis per order.
    bytes: f64,
    /// Orders per second.
    rate: f64,
    /// The microseconds of each process, on one line.
    shares: String,
}

/// Runs a million orders in large steps, each right before a small step on `new`, which has few orders. Then runs as
/// many small steps on both.
pub(super) async fn orders(
    world: &mut World,
    new: &mut World,
    announce: &impl Fn(&str),
) -> Result<Vec<Figure>, BenchError> {
    let (intake, sale, worker) = open(world, "growing").await?;
    let (new_intake, new_sale, new_worker) = open(new, "new").await?;
    let (mut before, mut few_before) = (FEW, FEW);
    let (mut of_many, mut after_many, mut bytes) = (Vec::new(), Vec::new(), (0.0, 0.0));
    for round in 0..2 * ROUNDS {
        let count = if round < ROUNDS { MANY / ROUNDS } else { FEW };
        announce(&format!("{count} orders after {before}, then {FEW} in new servers"));
        let cost = intake.run(world, &sale, before..before + count).await?;
        let few = new_intake.run(new, &new_sale, few_before..few_before + FEW).await?;
        announce(&cost.shares);
        if round < ROUNDS {
            of_many.push((cost.micros, few.micros));
            bytes = (bytes.0 + cost.bytes, bytes.1 + few.bytes);
        } else {
            after_many.push((cost.micros, few.micros));
        }
        (before, few_before) = (before + count, few_before + FEW);
    }
    new.end(new_worker).await;
    world.end(worker).await;
    let (many, first) = middle_round(of_many);
    let (last, first_then) = middle_round(after_many);
    let flat = |name, times| Figure::limit(name, "times", times, Wanted::AtMost(1.2));
    Ok(vec![
        Figure::limit("CPU per order, first 10,000", "us", first, Wanted::Informational),
        flat("CPU per order, over a million", many / first),
        flat("CPU per order, 10,000 after a million", last / first_then),
        flat("Redis per order, over a million", bytes.0 / bytes.1),
    ])
}

/// The same number of orders in one sale, and in a thousand sales at once.
pub(super) async fn sales(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let (intake, first, worker) = open(world, "one").await?;
    announce("100,000 orders of one sale");
    let one = intake.run(world, &first, FEW..FEW + SPREAD).await?;
    announce(&one.shares);
    announce("100,000 orders of a thousand sales");
    let store = world.store(Kind::Postgres).await?;
    let mut sales = Vec::new();
    for nth in 0..SALES {
        let sale = sale(&format!("of-{nth}"), PLENTY)?;
        open_sale(&intake.gate, &store, &sale).await?;
        sales.push(sale);
    }
    let thousand = intake.spread(world, &sales).await?;
    announce(&thousand.shares);
    world.end(worker).await;
    Ok(vec![
        Figure::limit(
            "100,000 orders of one sale, accepted to persisted",
            "orders/s",
            one.rate,
            Wanted::Informational,
        ),
        Figure::limit(
            "1,000 sales at once: slowdown",
            "times",
            one.rate / thousand.rate,
            Wanted::AtMost(3.0),
        ),
        Figure::limit(
            "1,000 sales at once: Redis per order",
            "times",
            thousand.bytes / one.bytes,
            Wanted::AtMost(1.2),
        ),
    ])
}

/// Opens a sale and sells its first few orders, which run with cold caches.
async fn open(world: &mut World, name: &str) -> Result<(Intake, Sale, Process), BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let publisher = Publisher::open(world.queue()?);
    publisher.wait_until_up().await;
    let sale = sale(name, PLENTY)?;
    open_sale(&gate, &store, &sale).await?;
    let intake = Intake { gate, publisher };
    let worker = world.process("worker", &[]).await?;
    intake.run(world, &sale, 0..FEW).await?;
    Ok((intake, sale, worker))
}

impl Intake {
    async fn run(
        &self,
        world: &World,
        sale: &Sale,
        buyers: std::ops::Range<u64>,
    ) -> Result<Cost, BenchError> {
        let count = buyers.end - buyers.start;
        let begun = Begun::now(world).await?;
        publish(&self.gate, &self.publisher, sale, buyers).await?;
        until_persisted(&self.gate, sale).await?;
        begun.cost(world, count).await
    }

    /// Sells the same number of orders in each sale. A message carries orders of several sales, as from the relay.
    async fn spread(&self, world: &World, sales: &[Sale]) -> Result<Cost, BenchError> {
        let begun = Begun::now(world).await?;
        let each = SPREAD / SALES;
        for from in (0..each).step_by(10) {
            for some in sales.chunks(8) {
                let calls = some.iter().map(|sale| accept(&self.gate, sale, from..from + 10));
                let orders: Vec<Order> =
                    futures_util::future::try_join_all(calls).await?.into_iter().flatten().collect();
                self.publisher.publish(&orders).await.map_err(broken)?;
            }
        }
        for sale in sales {
            until_persisted(&self.gate, sale).await?;
        }
        begun.cost(world, SPREAD).await
    }
}

/// The counters before a measurement.
struct Begun {
    cpu: Vec<(String, f64)>,
    bytes: f64,
    at: Instant,
}

impl Begun {
    async fn now(world: &World) -> Result<Self, BenchError> {
        Ok(Self { cpu: world.cpu()?, bytes: used_memory(world).await?, at: Instant::now() })
    }

    async fn cost(self, world: &World, orders: u64) -> Result<Cost, BenchError> {
        let seconds = self.at.elapsed().as_secs_f64();
        let cpu = world.cpu()?;
        let shares = cost::per_order(&self.cpu, &cpu, orders);
        let orders = orders as f64;
        let used: f64 = self
            .cpu
            .iter()
            .zip(cpu)
            .filter(|((name, _), _)| name != "the load")
            .map(|((_, before), (_, after))| after - before)
            .sum();
        Ok(Cost {
            micros: used * 1_000_000.0 / orders,
            bytes: (used_memory(world).await? - self.bytes) / orders,
            rate: orders / seconds,
            shares,
        })
    }
}
