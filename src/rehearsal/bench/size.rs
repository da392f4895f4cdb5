//! Recovery with a large sale: how long the commands take, how much memory they need, and what other buyers notice.
//!
//! The rows are made in bulk, directly in PostgreSQL, and Redis does not know the sale: as after Redis lost everything.

use std::process::Stdio;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::process::Command;

use super::buyers::{requests, tokens};
use super::error::{BenchError, broken};
use super::load;
use super::proc::peak_mb;
use super::report::{Figure, Report, Wanted};
use super::sample::{PLENTY, open_sale, sale};
use super::world::{PREFIX, Process, World};
use crate::domain::{Fingerprint, Number, SaleState, Sku};
use crate::rehearsal::servers::Kind;

/// The large sale, and the small one whose buyers should notice nothing.
const LARGE: &str = "large";
const SMALL: &str = "small";

/// Rows in one statement.
const AT_ONCE: u64 = 100_000;

/// Requests per second for the small sale, and how many are prepared at a time.
const RATE: u32 = 200;
const SLICE: u64 = 400;

/// How long the small sale is measured while nothing else happens.
const CALM: Duration = Duration::from_secs(20);

/// The most memory that a command may need, in MB.
const MEMORY: f64 = 256.0;

/// The longest call of Redis, in milliseconds.
const LONGEST_CALL: f64 = 20.0;

/// A tenth of the orders has been cancelled. The names are in no order, so that neighbours in the index are not
/// neighbours in the table.
const ORDERS: &str = "INSERT INTO orders (id, sale_id, user_id, sku, quantity, status, epoch, seq, limit_per_user, \
     fence, key_digest, live_key, fingerprint, version, accepted_at_ms, recorded_at_ms, updated_at_ms) \
     SELECT (lpad(to_hex($4 + n / 100), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8' || \
             substr(md5(n::text), 4, 15))::uuid, \
         $1, md5(n::text), 'shoe', 1, CASE WHEN n % 10 = 0 THEN 'cancelled' ELSE 'paid' END, 1, n + 1, 1, 1, \
         substr(md5(n::text), 1, 16), CASE WHEN n % 10 = 0 THEN NULL ELSE substr(md5(n::text), 1, 16) END, \
         $5, 2, $4 + n / 100, $4 + n / 100, $4 + n / 100 \
     FROM generate_series($2::int8, $3::int8) AS n";
const UNITS: &str = "INSERT INTO user_units (sale_id, user_id, units, fence) \
     SELECT $1, md5(n::text), CASE WHEN n % 10 = 0 THEN 0 ELSE 1 END, 1 FROM generate_series($2::int8, $3::int8) AS n";
const SOLD: &str = "UPDATE items SET sold = (SELECT COUNT(*) FROM orders WHERE sale_id = $1 AND live_key IS NOT NULL) \
     WHERE sale_id = $1";

/// How one command went.
struct Ran {
    seconds: f64,
    peak_mb: f64,
    output: String,
}

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
    open_sale(&gate, &store, &sale(SMALL, PLENTY)?).await?;
    let front = world.process("front", &[]).await?;
    let worker = world.process("worker", &[]).await?;
    let mut redis =
        redis::Client::open(world.url(Kind::Redis)?.as_str())?.get_multiplexed_async_connection().await?;
    let () =
        redis::cmd("CONFIG").arg(&["SET", "slowlog-log-slower-than", "1000"]).query_async(&mut redis).await?;

    announce("the small sale while nothing else happens");
    let mut buyers = 0;
    let calm = small_sale_until(world, &front, &mut buyers, tokio::time::sleep(CALM)).await?.1;
    let () = redis::cmd("SLOWLOG").arg("RESET").query_async(&mut redis).await?;

    announce("rebuilding the large sale");
    let rebuild = world.command(&["rebuild", "--sale", LARGE, "--yes", "--output", "json"]);
    let (rebuilt, busy) = small_sale_until(world, &front, &mut buyers, rebuild).await?;
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

fn seconds(what: &'static str, ran: &Ran) -> Figure {
    Figure::limit(what, "s", ran.seconds, Wanted::Informational)
}

fn memory(what: &'static str, ran: &Ran) -> Figure {
    Figure::limit(what, "MB", ran.peak_mb, Wanted::AtMost(MEMORY))
}

/// Buys from the small sale until `work` is done.
async fn small_sale_until<T>(
    world: &World,
    front: &Process,
    buyers: &mut u64,
    work: impl Future<Output = T>,
) -> Result<(T, Histogram<u64>), BenchError> {
    let tokens = tokens(world);
    let mut latency = Histogram::new(3).map_err(broken)?;
    let mut work = std::pin::pin!(work);
    loop {
        let slice = requests(&tokens, SMALL, *buyers..*buyers + SLICE)?;
        *buyers += SLICE;
        let buying = load::at_rate(front.buyers, &slice, 50, RATE);
        tokio::pin!(buying);
        let (done, answers) = tokio::select! {
            done = &mut work => (Some(done), (&mut buying).await?),
            answers = &mut buying => (None, answers?),
        };
        answers.all(202)?;
        latency.add(&answers.latency).map_err(broken)?;
        if let Some(done) = done {
            return Ok((done, latency));
        }
    }
}

/// The large sale in PostgreSQL: open, with the gate's number after its last order.
async fn make_rows(world: &World, orders: u64, announce: &impl Fn(&str)) -> Result<(), BenchError> {
    let store = world.store(Kind::Postgres).await?;
    let large = sale(LARGE, PLENTY)?;
    store.create_sale(&large).await.map_err(broken)?;
    let number = Number { epoch: 1, seq: i64::try_from(orders).unwrap_or(i64::MAX) };
    store.set_sale_state(&large.id, SaleState::Open, number).await.map_err(broken)?;
    store.close().await;
    let fingerprint = Fingerprint::of_body(&Sku::parse("shoe").map_err(broken)?, 1).to_string();
    let begun = crate::domain::Millis::now().minus(Duration::from_secs(86_400));
    let options: PgConnectOptions = world.url(Kind::Postgres)?.parse().map_err(broken)?;
    let options = options.disable_statement_logging(); // such statements are meant to take long
    let mut connection = PgConnection::connect_with(&options).await.map_err(broken)?;
    for from in (0..orders).step_by(AT_ONCE as usize) {
        announce(&format!("making rows: {from} of {orders}"));
        let to = orders.min(from + AT_ONCE) - 1;
        let (from, to) = (from as i64, to as i64);
        let rows = sqlx::query(ORDERS).bind(LARGE).bind(from).bind(to).bind(begun.0).bind(&fingerprint);
        rows.execute(&mut connection).await.map_err(broken)?;
        sqlx::query(UNITS).bind(LARGE).bind(from).bind(to).execute(&mut connection).await.map_err(broken)?;
    }
    sqlx::query(SOLD).bind(LARGE).execute(&mut connection).await.map_err(broken)?;
    // As the database does by itself after a while.
    for settled in ["VACUUM ANALYZE", "CHECKPOINT"] {
        sqlx::query(settled).execute(&mut connection).await.map_err(broken)?;
    }
    connection.close().await.map_err(broken)
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

impl World {
    /// Runs a command of this program to its end, and watches its memory.
    async fn command(&self, arguments: &[&str]) -> Result<Ran, BenchError> {
        let program = std::env::current_exe().map_err(broken)?;
        let mut command = Command::new(program);
        command.args(arguments).env("DOORBUSTER__AUTH__SECRET", &self.secret).kill_on_drop(true);
        for (name, kind) in
            [("redis.url", Kind::Redis), ("queue.url", Kind::Rabbitmq), ("database.url", Kind::Postgres)]
        {
            command.arg("--set").arg(format!("{name}={}", self.url(kind)?));
        }
        command.args([
            "--set",
            &format!("redis.prefix={PREFIX}"),
            "--set",
            &format!("queue.prefix={PREFIX}"),
        ]);
        let began = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.map_err(broken)?;
        let pid = child.id().ok_or_else(|| broken("the command ended at once"))?;
        let mut peak = 0.0_f64;
        let ended = child.wait_with_output();
        tokio::pin!(ended);
        let ended = loop {
            tokio::select! {
                ended = &mut ended => break ended.map_err(broken)?,
                () = tokio::time::sleep(Duration::from_millis(50)) => peak = peak.max(peak_mb(pid).unwrap_or(0.0)),
            }
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if !ended.status.success() {
            let said = text(ended.stdout) + &text(ended.stderr);
            return Err(broken(format!("{} ended with {}: {said}", arguments.join(" "), ended.status)));
        }
        Ok(Ran { seconds: began.elapsed().as_secs_f64(), peak_mb: peak, output: text(ended.stdout) })
    }
}
