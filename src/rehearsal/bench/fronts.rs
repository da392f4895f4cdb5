//! What the fronts' readings of a hot sale cost Redis. While buyers are refused, each front reads the sale again and
//! again, so that no refusal is out of date.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::error::{BenchError, broken};
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, open_sale, sale};
use super::world::World;
use crate::domain::{Item, SaleId, Sku};
use crate::gate::{Gate, GateSale, REFUSAL_PACE};
use crate::rehearsal::servers::Kind;

/// Fronts that refuse buyers of the sale at the same time.
const FRONTS: usize = 10;
/// How long they do.
const FOR: Duration = Duration::from_secs(5);
/// Rounds of each measurement.
const ROUNDS: usize = 3;

/// The share of a core that Redis needs for ten fronts, with one item and with a hundred, and next to it for the same number
/// of PINGs: the least that so many calls cost on this machine.
pub(super) async fn fronts(world: &World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let store = world.store(Kind::Postgres).await?;
    let gates = (0..FRONTS).map(|_| world.gate()).collect::<Result<Vec<_>, _>>()?;
    let mut shares = Vec::new();
    for (id, items) in [("narrow", 1), ("wide", 100)] {
        let mut sale = sale(id, PLENTY)?;
        sale.items = (0..items).map(item).collect::<Result<_, _>>()?;
        open_sale(&gates[0], &store, &sale).await?;
        let (mut read, mut pinged) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            announce(&format!("{FRONTS} fronts, {items} items, round {} of {ROUNDS}", round + 1));
            read.push(
                share(world, gates.iter().map(|gate| keep_reading(gate.clone(), sale.id.clone()))).await?,
            );
            pinged.push(share(world, gates.iter().map(|_| keep_pinging(world.url(Kind::Redis)))).await?);
        }
        let [read, pinged] = [read, pinged].map(|mut rounds| {
            rounds.sort_by(f64::total_cmp);
            rounds[ROUNDS / 2]
        });
        shares.push((read, pinged));
    }
    Ok(vec![
        Figure::limit(
            "ten fronts read a hot sale of 1 item: Redis",
            "% of a core",
            shares[0].0,
            Wanted::AtMost(5.0),
        ),
        Figure::limit("the same number of PINGs", "% of a core", shares[0].1, Wanted::Informational),
        Figure::limit("the same with 100 items", "% of a core", shares[1].0, Wanted::AtMost(5.0)),
    ])
}

fn item(nth: u32) -> Result<Item, BenchError> {
    let sku = Sku::parse(format!("shoe-{nth}")).map_err(broken)?;
    Ok(Item { sku, stock: i64::from(PLENTY), limit_per_user: None })
}

/// The percentage of a core that Redis used meanwhile.
async fn share<R>(world: &World, fronts: impl Iterator<Item = R>) -> Result<f64, BenchError>
where
    R: Future<Output = Result<(), BenchError>> + Send + 'static,
{
    let before = redis_seconds(world)?;
    let begin = Instant::now();
    for read in try_join_all(fronts.map(tokio::spawn)).await.map_err(broken)? {
        read?;
    }
    let elapsed = begin.elapsed().as_secs_f64();
    Ok(100.0 * (redis_seconds(world)? - before) / elapsed)
}

/// Reads the sale as often as a front does whose buyers never pause.
async fn keep_reading(gate: Gate, sale: SaleId) -> Result<(), BenchError> {
    let end = Instant::now() + FOR;
    let mut reader = gate.reader(&sale);
    let mut known: Option<Arc<GateSale>> = None;
    while Instant::now() < end {
        let begin = tokio::time::Instant::now();
        let reading =
            reader.read().await.map_err(broken)?.ok_or_else(|| broken("the gate lacks the sale"))?;
        if known.replace(reading.sale.clone()).is_some_and(|known| !Arc::ptr_eq(&known, &reading.sale)) {
            return Err(broken("the sale has changed"));
        }
        tokio::time::sleep_until(begin + REFUSAL_PACE).await;
    }
    Ok(())
}

async fn keep_pinging(url: Result<String, BenchError>) -> Result<(), BenchError> {
    let client = redis::Client::open(url?).map_err(broken)?;
    let mut connection = client.get_multiplexed_async_connection().await.map_err(broken)?;
    let end = Instant::now() + FOR;
    while Instant::now() < end {
        let begin = tokio::time::Instant::now();
        let _: String = redis::cmd("PING").query_async(&mut connection).await.map_err(broken)?;
        tokio::time::sleep_until(begin + REFUSAL_PACE).await;
    }
    Ok(())
}

fn redis_seconds(world: &World) -> Result<f64, BenchError> {
    let used = world.cpu()?.into_iter().find(|(name, _)| name == Kind::Redis.name());
    used.map(|(_, seconds)| seconds).ok_or_else(|| broken("no Redis"))
}
