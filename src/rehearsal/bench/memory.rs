//! Memory use: of a front with idle connections, and of Redis with orders and sales at rest.

use std::time::Duration;

use super::error::{BenchError, broken};
use super::load;
use super::orders::accept;
use super::proc::resident_mb;
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, sale};
use super::world::World;
use crate::domain::{Sale, SaleState};
use crate::gate::{Gate, Outcome, Settlement, Versions};
use crate::rehearsal::servers::Kind;

/// Idle connections.
const IDLE: usize = 10_000;

/// The memory use of a front with idle connections.
pub(super) async fn idle(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    announce("10,000 idle connections");
    let front = world.process("front", &["front.header_within_ms=60000"]).await?;
    let before = resident_mb(front.pid)?;
    let streams = load::idle(front.buyers, IDLE).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let silent = resident_mb(front.pid)?;
    drop(streams);
    let asked = load::idle_after_one_answer(front.buyers, "/v1/sales/none", IDLE).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = resident_mb(front.pid)?;
    drop(asked);
    world.end(front).await;
    Ok(vec![
        Figure::limit("front with 10,000 silent connections", "MB", silent, Wanted::AtMost(100.0)),
        Figure::limit("the same without connections", "MB", before, Wanted::Informational),
        Figure::limit("the same after one answer each, kept alive", "MB", after, Wanted::AtMost(100.0)),
    ])
}

/// The memory use of Redis for orders and sales at rest.
pub(super) async fn redis_memory(world: &World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    const ORDERS: u64 = 100_000;
    const SALES: u64 = 1_000;
    announce("Redis's memory");
    let gate = world.gate()?;
    let used = async || used_memory(world).await;
    let one = sale("memory", PLENTY)?;
    load_and_open(&gate, &one).await?;
    let before = used().await?;
    for from in (0..ORDERS).step_by(200) {
        let orders = accept(&gate, &one, from..from + 200).await?;
        let settled: Vec<_> = orders
            .into_iter()
            .map(|order| Settlement { id: order.id, user: order.user, outcome: Outcome::Kept })
            .collect();
        gate.settle(&one.id, &settled).await.map_err(broken)?;
    }
    let per_order = (used().await? - before) / ORDERS as f64;
    let before = used().await?;
    for nth in 0..SALES {
        load_and_open(&gate, &sale(&format!("memory-{nth}"), PLENTY)?).await?;
    }
    let per_sale = (used().await? - before) / SALES as f64;
    Ok(vec![
        Figure::limit("Redis per accepted order, at rest", "bytes", per_order, Wanted::AtMost(200.0)),
        Figure::limit("Redis per sale of one item", "bytes", per_sale, Wanted::Informational),
    ])
}

/// Opens a sale in the gate only, not in the database.
async fn load_and_open(gate: &Gate, sale: &Sale) -> Result<(), BenchError> {
    gate.load(sale, &Versions::default()).await.map_err(broken)?;
    gate.move_sale(&sale.id, SaleState::Open, &[SaleState::Draft]).await.map_err(broken)?;
    Ok(())
}

/// Bytes that Redis uses.
pub(super) async fn used_memory(world: &World) -> Result<f64, BenchError> {
    let mut connection =
        redis::Client::open(world.url(Kind::Redis)?.as_str())?.get_multiplexed_async_connection().await?;
    let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await?;
    let bytes = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    bytes.and_then(|bytes| bytes.trim().parse().ok()).ok_or_else(|| broken("redis reports no used_memory"))
}
