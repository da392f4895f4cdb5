//! What it costs to record traces: orders accepted over HTTP and persisted, with a collector and without.

use axum::Router;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::buyers::{LONG_TIMEOUTS, requests, tokens};
use super::error::{BenchError, broken};
use super::load;
use super::orders::until_persisted;
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, open_sale, sale};
use super::world::World;
use crate::domain::Sale;
use crate::rehearsal::servers::Kind;

/// Orders of a measurement, and before it.
const ORDERS: u64 = 30_000;
const WARM_UP: u64 = 5_000;
/// Orders in flight at once.
const IN_FLIGHT: usize = 200;
const ROUNDS: u64 = 5;

/// One in a hundred requests is recorded, as by default; and none. New processes for each, because a process records or
/// does not.
pub(super) async fn traces(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let (url, _collector) = collector().await?;
    let tracing = [format!("traces.url={url}"), "traces.one_in=100".to_owned()];
    let (mut rates, mut costs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        announce(&format!(
            "accepting {ORDERS} orders with traces and without, round {} of {ROUNDS}",
            round + 1
        ));
        let mut pair = Vec::new();
        // The other one is first in the next round.
        let order = if round % 2 == 0 { [true, false] } else { [false, true] };
        for records in order {
            let sale = sale(&format!("traces-{round}-{records}"), PLENTY)?;
            open_sale(&gate, &store, &sale).await?;
            let settings: Vec<&str> =
                if records { tracing.iter().map(String::as_str).collect() } else { Vec::new() };
            let (rate, cost) = measure(world, &sale, &settings).await?;
            until_persisted(&gate, &sale).await?;
            pair.push((records, rate, cost));
        }
        pair.sort_by_key(|(records, ..)| !records);
        rates.push((pair[0].1, pair[1].1));
        // The other way round, so that more is better here as well.
        costs.push((1.0 / pair[0].2, 1.0 / pair[1].2));
    }
    Ok(vec![
        Figure::beside("accepted, traces of one in 100; none", "orders/s", rates, Wanted::Ratio(0.97)),
        Figure::beside("by CPU of front and worker; none", "orders/s", costs, Wanted::Ratio(0.97)),
    ])
}

/// The rate, and the seconds of CPU of front and worker for an order.
async fn measure(world: &mut World, sale: &Sale, settings: &[&str]) -> Result<(f64, f64), BenchError> {
    let front = world.process("front", &[&LONG_TIMEOUTS[..], settings].concat()).await?;
    let worker = world.process("worker", settings).await?;
    let tokens = tokens(world);
    let warm_up = requests(&tokens, sale.id.as_str(), 0..WARM_UP)?;
    load::closed(front.buyers, &warm_up, IN_FLIGHT, 1).await?;
    let buyers = requests(&tokens, sale.id.as_str(), WARM_UP..WARM_UP + ORDERS)?;
    let before = own_cpu(world)?;
    let answers = load::closed(front.buyers, &buyers, IN_FLIGHT, 1).await?;
    let gate = world.gate()?;
    until_persisted(&gate, sale).await?;
    let cost = (own_cpu(world)? - before) / ORDERS as f64;
    world.end(worker).await;
    world.end(front).await;
    Ok((answers.all(202)?.rate(), cost))
}

fn own_cpu(world: &World) -> Result<f64, BenchError> {
    let all = world.cpu()?;
    Ok(all
        .iter()
        .filter(|(name, _)| ["front", "worker"].contains(&name.as_str()))
        .map(|(_, seconds)| seconds)
        .sum())
}

/// Takes everything.
async fn collector() -> Result<(String, AbortOnDropHandle<()>), BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(broken)?;
    let url = format!("http://{}/v1/traces", listener.local_addr().map_err(broken)?);
    let routes = Router::new().route("/v1/traces", post(async || ""));
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::warn!(%error, "the collector has ended");
        }
    });
    Ok((url, AbortOnDropHandle::new(task)))
}
