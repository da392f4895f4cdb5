//! Recovery with a large sale: how long the commands take, how much memory they need, and what other buyers notice.
//!
//! The rows are made in bulk, directly in PostgreSQL, and Redis does not know the sale: as after Redis lost everything.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::buyers::{requests, tokens};
use super::command::{memory, seconds};
use super::error::{BenchError, broken};
use super::large_sale::{LARGE, make_rows};
use super::load;
use super::report::{Figure, Report, Wanted};
use super::sample::{PLENTY, open_sale, sale};
use super::world::{Process, World};
use crate::rehearsal::servers::Kind;

/// The sale whose buyers should notice nothing.
const SMALL: &str = "small";

/// Requests per second for the small sale, and how many are prepared at a time.
const RATE: u32 = 200;
const SLICE: u64 = 400;

/// How long the small sale is measured while nothing else happens.
const CALM: Duration = Duration::from_secs(20);

/// The longest call of Redis, in milliseconds.
const LONGEST_CALL: f64 = 20.0;

/// Measures on private servers with the settings of `config/default.toml`. Takes a minute or two for each million
/// orders.
pub async fn run(orders: u64, announce: impl Fn(&str)) -> Result<Report, BenchError> {
    announce("starting private servers");
    let mut world = World::start(&[Kind::Redis, Kind::Rabbitmq, Kind::Postgres]).await?;
    let mut figures = Vec::new();
    let measured = measure(&mut world, orders, &mut figures, &announce).await;
    world.stop().await;
    let unfinished = measured.err().map(|error| error.to_string());
    Ok(Report { bench: "size", figures, unfinished })
}

async fn measure(
    world: &mut World,
    orders: u64,
    figures: &mut Vec<Figure>,
    announce: &impl Fn(&str),
) -> Result<(), BenchError> {
    make_rows(world, orders, announce).await?;
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    // The front first: it gives the empty Redis the id of the installation.
    let front = world.process("front", &[]).await?;
    open_sale(&gate, &store, &sale(SMALL, PLENTY)?).await?;
    let worker = world.process("worker", &[]).await?;
    let mut redis =
        redis::Client::open(world.url(Kind::Redis)?.as_str())?.get_multiplexed_async_connection().await?;
    // Ten million users take more than the private Redis may use.
    let settings = &["SET", "slowlog-log-slower-than", "1000", "maxmemory", "0"];
    let () = redis::cmd("CONFIG").arg(settings).query_async(&mut redis).await?;

    announce("the small sale while nothing else happens");
    let mut buyers = 0;
    let (_, calm, _) = small_sale_until(world, &front, &mut buyers, tokio::time::sleep(CALM)).await?;
    let () = redis::cmd("SLOWLOG").arg("RESET").query_async(&mut redis).await?;

    announce("rebuilding the large sale");
    let rebuild = world.command(&["rebuild", "--sale", LARGE, "--yes", "--output", "json"]);
    let (rebuilt, busy, others) = small_sale_until(world, &front, &mut buyers, rebuild).await?;
    let rebuilt = rebuilt?;
    let calls: Vec<(i64, i64, i64)> = slow_calls(&mut redis).await?;
    let longest = calls.iter().map(|(_, _, micros)| *micros).max().unwrap_or(1_000) as f64 / 1_000.0;
    let p99 = |latency: &Histogram<u64>| latency.value_at_quantile(0.99) as f64 / 1_000.0;
    let frozen = frozen_seconds(&rebuilt.output)?;
    figures.extend([
        Figure::limit("orders", "orders", orders as f64, Wanted::Informational),
        seconds("rebuild", &rebuilt),
        Figure::limit("rebuild: the sale was frozen", "s", frozen, Wanted::Informational),
        memory("rebuild: memory", &rebuilt),
        Figure::limit("rebuild: longest call of Redis", "ms", longest, Wanted::AtMost(LONGEST_CALL)),
        Figure::limit("another sale's p99 before", "ms", p99(&calm), Wanted::Informational),
        Figure::limit(
            "another sale's p99 during the rebuild",
            "ms",
            p99(&busy),
            Wanted::AtMost(2.0 * p99(&calm)),
        ),
        Figure::limit(
            "another sale's requests that were not answered 202",
            "requests",
            others as f64,
            Wanted::AtMost(0.0),
        ),
    ]);

    figures.extend(read_all(world, announce).await?);
    world.end(worker).await;
    world.end(front).await;
    Ok(())
}

/// The commands that read the whole sale.
async fn read_all(world: &World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    announce("the audit of the large sale");
    let audited = world.command(&["audit", "--sale", LARGE, "--output", "json"]).await?;
    let file = world.folder().join("large.jsonl").to_string_lossy().into_owned();
    announce("its export");
    let exported = world.command(&["export", "--sale", LARGE, "--file", &file]).await?;
    announce("the replay of its export");
    let replayed = world.command(&["replay", "run", "file", &file, "--yes"]).await?;
    Ok(vec![
        seconds("audit", &audited),
        memory("audit: memory", &audited),
        seconds("export", &exported),
        memory("export: memory", &exported),
        seconds("replay of the export", &replayed),
        memory("replay: memory", &replayed),
    ])
}

/// Buys from the small sale until `work` is done. Returns also the latency, and how many requests were not answered
/// 202: on a machine that is busy with a rebuild of many minutes, an answer may be late.
async fn small_sale_until<T>(
    world: &World,
    front: &Process,
    buyers: &mut u64,
    work: impl Future<Output = T>,
) -> Result<(T, Histogram<u64>, u64), BenchError> {
    let tokens = tokens(world);
    let mut latency = Histogram::new(3).map_err(broken)?;
    let mut work = std::pin::pin!(work);
    let mut others = 0;
    loop {
        let slice = requests(&tokens, SMALL, *buyers..*buyers + SLICE)?;
        *buyers += SLICE;
        let buying = load::at_rate(front.buyers, &slice, 50, RATE);
        tokio::pin!(buying);
        let (done, answers) = tokio::select! {
            done = &mut work => (Some(done), (&mut buying).await?),
            answers = &mut buying => (None, answers?),
        };
        others += answers.others(202);
        latency.add(&answers.latency).map_err(broken)?;
        if let Some(done) = done {
            return Ok((done, latency, others));
        }
    }
}

/// Each slow call: its number, when it was, and how many microseconds it took.
async fn slow_calls(
    redis: &mut redis::aio::MultiplexedConnection,
) -> Result<Vec<(i64, i64, i64)>, BenchError> {
    let calls: Vec<Vec<redis::Value>> = redis::cmd("SLOWLOG").arg("GET").arg(128).query_async(redis).await?;
    let number = |value: &redis::Value| redis::from_redis_value_ref(value).unwrap_or(0);
    Ok(calls
        .iter()
        .filter_map(|call| Some((number(call.first()?), number(call.get(1)?), number(call.get(2)?))))
        .collect())
}

fn frozen_seconds(output: &str) -> Result<f64, BenchError> {
    let report: serde_json::Value = serde_json::from_str(output).map_err(broken)?;
    report["frozen_seconds"].as_f64().ok_or_else(|| broken(format!("no frozen_seconds in {output}")))
}
