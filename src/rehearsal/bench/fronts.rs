//! What the fronts' readings of a hot sale cost Redis. While buyers are refused, each front reads the sale again and
//! again, so that no refusal is out of date.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::error::{BenchError, broken};
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, open_sale, sale};
use super::world::World;
use crate::domain::{Item, Sale, SaleId, Sku};
use crate::gate::{Changes, Gate, REFUSAL_PACE};
use crate::rehearsal::servers::Kind;

/// Fronts that refuse buyers of the sale at the same time.
const FRONTS: usize = 10;
/// How long they do.
const FOR: Duration = Duration::from_secs(5);
/// Rounds of each measurement.
const ROUNDS: usize = 3;

/// The share of a core that Redis needs for ten fronts, with one item and with a hundred.
pub(super) async fn fronts(world: &World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let store = world.store(Kind::Postgres).await?;
    let gates = (0..FRONTS).map(|_| world.gate()).collect::<Result<Vec<_>, _>>()?;
    let mut shares = Vec::new();
    for (id, items) in [("narrow", 1), ("wide", 100)] {
        let mut sale = sale(id, PLENTY)?;
        sale.items = (0..items).map(item).collect::<Result<_, _>>()?;
        open_sale(&gates[0], &store, &sale).await?;
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            announce(&format!("{FRONTS} fronts, {items} items, round {} of {ROUNDS}", round + 1));
            rounds.push(share(world, &gates, &sale).await?);
        }
        rounds.sort_by(f64::total_cmp);
        shares.push(rounds[ROUNDS / 2]);
    }
    Ok(vec![
        Figure::limit(
            "ten fronts read a hot sale of 1 item: Redis",
            "% of a core",
            shares[0],
            Wanted::AtMost(5.0),
        ),
        Figure::limit("the same with 100 items", "% of a core", shares[1], Wanted::AtMost(5.0)),
    ])
}

fn item(nth: u32) -> Result<Item, BenchError> {
    let sku = Sku::parse(format!("shoe-{nth}")).map_err(broken)?;
    Ok(Item { sku, stock: i64::from(PLENTY), limit_per_user: None })
}

/// The percentage of a core that Redis used meanwhile.
async fn share(world: &World, gates: &[Gate], sale: &Sale) -> Result<f64, BenchError> {
    let before = redis_seconds(world)?;
    let begin = Instant::now();
    let reading = gates.iter().map(|gate| {
        let (gate, sale) = (gate.clone(), sale.id.clone());
        tokio::spawn(async move { keep_reading(&gate, &sale).await })
    });
    for read in try_join_all(reading).await.map_err(broken)? {
        read?;
    }
    let elapsed = begin.elapsed().as_secs_f64();
    Ok(100.0 * (redis_seconds(world)? - before) / elapsed)
}

/// Reads the sale as often as a front does whose buyers never pause.
async fn keep_reading(gate: &Gate, sale: &SaleId) -> Result<(), BenchError> {
    let end = Instant::now() + FOR;
    let known =
        gate.describe(sale).await.map_err(broken)?.ok_or_else(|| broken("the gate lacks the sale"))?;
    while Instant::now() < end {
        let begin = tokio::time::Instant::now();
        let changes = gate.describe_changes(sale, &known).await.map_err(broken)?;
        if let Changes::Some(_) = changes {
            return Err(broken("the sale has changed"));
        }
        tokio::time::sleep_until(begin + REFUSAL_PACE).await;
    }
    Ok(())
}

fn redis_seconds(world: &World) -> Result<f64, BenchError> {
    let used = world.cpu()?.into_iter().find(|(name, _)| name == Kind::Redis.name());
    used.map(|(_, seconds)| seconds).ok_or_else(|| broken("no Redis"))
}
