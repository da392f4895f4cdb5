//! What an order costs as work grows: after a million others, and with a thousand sales at once.

use std::time::Instant;

use super::persist::{accept, publish, until_persisted};
use super::report::{Figure, Wanted};
use super::world::{PLENTY, Process, World, open_sale, sale};
use super::{BenchError, broken, http};
use crate::domain::{Order, Sale};
use crate::gate::Gate;
use crate::queue::Publisher;
use crate::rehearsal::servers::Kind;

const FEW: u64 = 10_000;
const MANY: u64 = 1_000_000;
/// In a world that is new and in one that has had many, turn by turn: what else the machine does moves half a
/// second of work by more than what is looked for.
const ROUNDS: u64 = 5;
/// Orders over all sales, of one and of a thousand.
const SPREAD: u64 = 100_000;
const SALES: u64 = 1_000;

struct Way {
    gate: Gate,
    publisher: Publisher,
}

/// What some orders cost, from the gate to the row.
struct Cost {
    /// Microseconds of CPU per order, of everything but this process.
    micros: f64,
    /// Bytes of Redis per order.
    bytes: f64,
    /// Orders per second.
    rate: f64,
    /// Of whom the microseconds are.
    shares: String,
}

/// A million orders in pieces, each right before ten thousand in `new`, which has few; then ten thousand more, as
/// often beside ten thousand there.
pub(super) async fn orders(
    world: &mut World,
    new: &mut World,
    tell: &impl Fn(&str),
) -> Result<Vec<Figure>, BenchError> {
    let (way, sale, worker) = open(world, "growing").await?;
    let (new_way, new_sale, new_worker) = open(new, "new").await?;
    let (mut before, mut few_before) = (FEW, FEW);
    let (mut of_many, mut after_many, mut bytes) = (Vec::new(), Vec::new(), (0.0, 0.0));
    for round in 0..2 * ROUNDS {
        let count = if round < ROUNDS { MANY / ROUNDS } else { FEW };
        tell(&format!("{count} orders after {before}, then {FEW} in new servers"));
        let cost = way.run(world, &sale, before..before + count).await?;
        let few = new_way.run(new, &new_sale, few_before..few_before + FEW).await?;
        tell(&cost.shares);
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
    let (many, first) = super::middle_round(of_many);
    let (last, first_then) = super::middle_round(after_many);
    let flat = |name, times| Figure::limit(name, "times", times, Wanted::AtMost(1.2));
    Ok(vec![
        Figure::limit("CPU per order, of the first 10,000", "us", first, Wanted::Informational),
        flat("CPU per order, of a million", many / first),
        flat("CPU per order, of 10,000 after a million", last / first_then),
        flat("Redis per order, of a million", bytes.0 / bytes.1),
    ])
}

/// As many orders in one sale, and in a thousand at once.
pub(super) async fn sales(world: &mut World, tell: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let (way, sale, worker) = open(world, "one").await?;
    tell("100,000 orders of one sale");
    let one = way.run(world, &sale, FEW..FEW + SPREAD).await?;
    tell(&one.shares);
    tell("100,000 orders of a thousand sales");
    let store = world.store(Kind::Postgres).await?;
    let mut sales = Vec::new();
    for nth in 0..SALES {
        let sale = super::world::sale(&format!("of-{nth}"), PLENTY)?;
        open_sale(&way.gate, &store, &sale).await?;
        sales.push(sale);
    }
    let thousand = way.spread(world, &sales).await?;
    tell(&thousand.shares);
    world.end(worker).await;
    Ok(vec![
        Figure::limit(
            "100,000 orders of one sale, accepted to persisted",
            "orders/s",
            one.rate,
            Wanted::Informational,
        ),
        Figure::limit(
            "of 1,000 sales at once: slower",
            "times",
            one.rate / thousand.rate,
            Wanted::AtMost(3.0),
        ),
        Figure::limit(
            "of 1,000 sales at once: Redis per order",
            "times",
            thousand.bytes / one.bytes,
            Wanted::AtMost(1.2),
        ),
    ])
}

/// A sale that has sold its first few: what those meet is cold.
async fn open(world: &mut World, name: &str) -> Result<(Way, Sale, Process), BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let publisher = Publisher::open(world.queue()?);
    publisher.wait_until_up().await;
    let sale = sale(name, PLENTY)?;
    open_sale(&gate, &store, &sale).await?;
    let way = Way { gate, publisher };
    let worker = world.process("worker", &[]).await?;
    way.run(world, &sale, 0..FEW).await?;
    Ok((way, sale, worker))
}

impl Way {
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

    /// As many orders of each sale. A message carries those of several, as the relay's do.
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

struct Begun {
    cpu: Vec<(String, f64)>,
    bytes: f64,
    at: Instant,
}

impl Begun {
    async fn now(world: &World) -> Result<Self, BenchError> {
        Ok(Self { cpu: world.cpu()?, bytes: http::used_memory(world).await?, at: Instant::now() })
    }

    async fn cost(self, world: &World, orders: u64) -> Result<Cost, BenchError> {
        let seconds = self.at.elapsed().as_secs_f64();
        let cpu = world.cpu()?;
        let shares = http::per_order(&self.cpu, &cpu, orders);
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
            bytes: (http::used_memory(world).await? - self.bytes) / orders,
            rate: orders / seconds,
            shares,
        })
    }
}
