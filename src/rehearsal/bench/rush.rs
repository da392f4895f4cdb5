//! Latency at a fixed rate.

use std::net::SocketAddr;

use hdrhistogram::Histogram;

use super::buyers::{requests, tokens};
use super::error::{BenchError, broken};
use super::load;
use super::orders::until_persisted;
use super::report::{Figure, Wanted};
use super::sample::{open_sale, sale};
use super::world::World;
use crate::rehearsal::servers::Kind;

/// 5,000 requests a second for 10,000 units: the first 10,000 are accepted, the rest are refused as sold out.
pub(super) async fn rush(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    const RATE: u32 = 5_000;
    const UNITS: u32 = 10_000;
    announce("5,000 requests per second for 10,000 units");
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let front = world.process("front", &[]).await?;
    let worker = world.process("worker", &[]).await?;
    let sale = sale("noon", UNITS)?;
    open_sale(&gate, &store, &sale).await?;
    let crowd = requests(&tokens(world), "noon", 0..50_000)?;
    let answers = load::at_rate(front.buyers, &crowd, 500, RATE).await?;
    let (Some(accepted), Some(late)) = (answers.of(202), answers.of(409)) else {
        return Err(broken(format!("{UNITS} units, and {:?}", answers.statuses())));
    };
    if accepted.len() != u64::from(UNITS) {
        return Err(broken(format!("{UNITS} units, and {:?}", answers.statuses())));
    }
    until_persisted(&gate, &sale).await?;
    let answered = (accepted.len() + late.len()) as f64 / crowd.len() as f64 * 100.0;
    let mean = |latency: &Histogram<u64>| latency.mean() / 1000.0;
    let p99 = |latency: &Histogram<u64>| latency.value_at_quantile(0.99) as f64 / 1000.0;
    let waited = async |what| metric(front.operations, what, 0.99).await.map(|seconds| seconds * 1000.0);
    let all = &answers.latency;
    let figures = vec![
        Figure::limit("5,000 requests/s: mean", "ms", mean(all), Wanted::AtMost(5.0)),
        Figure::limit("5,000 requests/s: p99", "ms", p99(all), Wanted::AtMost(25.0)),
        Figure::limit("5,000 requests/s: answered", "%", answered, Wanted::AtLeast(100.0)),
        Figure::limit("those accepted: mean", "ms", mean(accepted), Wanted::Informational),
        Figure::limit("those accepted: p99", "ms", p99(accepted), Wanted::Informational),
        Figure::limit("those sold out: p99", "ms", p99(late), Wanted::Informational),
        Figure::limit(
            "a call of the gate: p99",
            "ms",
            waited("doorbuster_gate_admit_seconds").await?,
            Wanted::Informational,
        ),
        Figure::limit(
            "a confirm of the broker: p99",
            "ms",
            waited("doorbuster_relay_confirm_seconds").await?,
            Wanted::Informational,
        ),
    ];
    world.end(worker).await;
    world.end(front).await;
    Ok(figures)
}

/// A quantile of a histogram in `/metrics`, since the process started. Estimated within its bucket as Prometheus does.
async fn metric(operations: SocketAddr, name: &str, quantile: f64) -> Result<f64, BenchError> {
    let text = load::get(operations, "/metrics").await.unwrap_or_default();
    let start = format!("{name}_bucket{{le=\"");
    let bucket = |line: &str| -> Option<(f64, f64)> {
        let (bound, count) = line.strip_prefix(&start)?.split_once("\"} ")?;
        Some((bound.parse().ok()?, count.trim().parse().ok()?))
    };
    let buckets: Vec<(f64, f64)> = text.lines().filter_map(bucket).collect();
    let wanted = quantile * buckets.last().map_or(0.0, |(_, all)| *all);
    let mut below = (0.0, 0.0);
    for (bound, count) in buckets {
        if count >= wanted && count > below.1 {
            let share = (wanted - below.1) / (count - below.1);
            // The last bucket has no bound.
            return Ok(if bound.is_finite() { below.0 + share * (bound - below.0) } else { below.0 });
        }
        below = (bound, count);
    }
    Err(broken(format!("/metrics has no {name}")))
}
