//! What a buyer waits for: refusals, repeats and acceptances over HTTP, beside a bare route and beside bare
//! publishing; the latency at a fixed rate; what an idle connection costs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::load::{self, order};
use super::persist::until_persisted;
use super::report::{Figure, Wanted};
use super::world::{PLENTY, Process, World, open_sale, sale, user};
use super::{BenchError, bare, broken, resident_mb};
use crate::domain::Order;
use crate::front::{AuthSettings, Tokens};
use crate::gate::Gate;
use crate::rehearsal::servers::Kind;

const CONNECTIONS: usize = 128;
const ROUNDS: usize = 5;
/// Requests of a round of refusals.
const REFUSALS: usize = 100_000;
/// Buyers who ask for what is sold out.
const CROWD: u64 = 20_000;
/// Orders of a round of acceptances.
const ACCEPTED: u64 = 60_000;
/// Orders under way while many are accepted, here and in the ceiling: each connection has one, and so many
/// messages are without a confirm there.
const UNDER_WAY: usize = 1_000;
const IDLE: usize = 10_000;

fn tokens(world: &World) -> Tokens {
    Tokens::new(AuthSettings {
        secret: world.secret.clone(),
        public_key: String::new(),
        issuer: "doorbuster".into(),
        audience: "doorbuster".into(),
        leeway: 2,
    })
}

/// A disk that stalls for a second slows a round down, and does not end the whole measurement with orders whose
/// outcome is unknown.
const PATIENT: [&str; 2] = ["redis.timeout_ms=10000", "intake.confirm_within_ms=10000"];

/// Requests of buyers, each with a token of his own.
fn requests(
    tokens: &Tokens,
    sale: &str,
    buyers: std::ops::Range<u64>,
) -> Result<Arc<Vec<Vec<u8>>>, BenchError> {
    let requests = buyers.map(|nth| Ok(order(sale, &tokens.mint(&user(nth)?, None, 86_400), None)));
    Ok(Arc::new(requests.collect::<Result<_, BenchError>>()?))
}

/// Sold-out answers and repeats, beside the bare route.
pub(super) async fn refusals(world: &mut World, tell: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let bare = world.bare_http().await?;
    let login = Login::new()?;
    let public_key = format!("auth.public_key={}", login.x);
    let front = world.process("front", &[&[public_key.as_str()][..], &PATIENT].concat()).await?;
    let tokens = tokens(world);
    let gone = sale("gone", 100)?;
    open_sale(&gate, &store, &gone).await?;
    let buyers = requests(&tokens, "gone", 0..100)?;
    load::closed(front.buyers, &buyers, 8, 1).await?.all(202)?;
    let worker = world.process("worker", &[]).await?;
    until_persisted(&gate, &gone).await?;
    world.end(worker).await;
    let late = requests(&tokens, "gone", 100..100 + CROWD)?;
    let late_ed: Vec<_> = (100..100 + CROWD)
        .map(|nth| Ok(order("gone", &login.token(&user(nth)?)?, None)))
        .collect::<Result<_, BenchError>>()?;
    // Before anything of theirs is remembered.
    let mut first = Vec::new();
    for (what, requests) in [
        ("sold out, each HS256 token seen first", late.clone()),
        ("sold out, each EdDSA token seen first", Arc::new(late_ed.clone())),
    ] {
        tell(what);
        let told = load::closed(front.buyers, &requests, CONNECTIONS, 1).await?;
        first.push(Figure::limit(what, "answers/s", told.all(409)?.rate(), Wanted::Informational));
    }
    let late_ed = Arc::new(late_ed);
    let mut figures = vec![
        beside_bare(
            "sold out, HS256; a bare axum route",
            &bare,
            &front,
            &late,
            409,
            Wanted::Ratio(0.8),
            tell,
        )
        .await?,
        beside_bare(
            "sold out, EdDSA; a bare axum route",
            &bare,
            &front,
            &late_ed,
            409,
            Wanted::Informational,
            tell,
        )
        .await?,
        beside_bare(
            "a repeat, of its row; a bare axum route",
            &bare,
            &front,
            &buyers,
            200,
            Wanted::Informational,
            tell,
        )
        .await?,
    ];
    figures.extend(first);
    world.end(front).await;
    world.end(bare).await;
    Ok(figures)
}

/// A login that signs with Ed25519.
struct Login {
    key: jsonwebtoken::EncodingKey,
    x: String,
}

impl Login {
    fn new() -> Result<Self, BenchError> {
        use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
        use base64::Engine as _;
        let key = Ed25519KeyPair::generate().map_err(broken)?;
        let x = base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(key.public_key().as_ref());
        let key = jsonwebtoken::EncodingKey::from_ed_der(key.to_pkcs8().map_err(broken)?.as_ref());
        Ok(Self { key, x })
    }

    fn token(&self, user: &crate::domain::UserId) -> Result<String, BenchError> {
        let now = crate::domain::Millis::now().0 / 1000;
        let claims = serde_json::json!({
            "sub": user, "iss": "doorbuster", "aud": "doorbuster", "exp": now + 86_400, "nbf": now,
        });
        let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::EdDSA);
        jsonwebtoken::encode(&header, &claims, &self.key).map_err(broken)
    }
}

async fn beside_bare(
    what: &'static str,
    bare: &Process,
    front: &Process,
    requests: &Arc<Vec<Vec<u8>>>,
    status: u16,
    wanted: Wanted,
    tell: &impl Fn(&str),
) -> Result<Figure, BenchError> {
    tell(what);
    let times = (REFUSALS / requests.len()).max(1);
    // Once, so that both are warm.
    load::closed(front.buyers, requests, CONNECTIONS, times.div_ceil(10)).await?.all(status)?;
    load::closed(bare.buyers, requests, CONNECTIONS, times.div_ceil(10)).await?.all(409)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let ceiling = load::closed(bare.buyers, requests, CONNECTIONS, times).await?.all(409)?.rate();
        let ours = load::closed(front.buyers, requests, CONNECTIONS, times).await?.all(status)?.rate();
        rounds.push((ours, ceiling));
    }
    Ok(Figure::beside(what, "answers/s", rounds, wanted))
}

/// Accepted, each answered when the broker has confirmed it, while a worker persists; beside publishing the
/// same orders one by one.
pub(super) async fn accepted(world: &mut World, tell: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let broker = world.url(Kind::Rabbitmq)?;
    // An answer that says less than that the broker has it is none.
    let front = world.process("front", &[&["intake.durability=broker_only"][..], &PATIENT].concat()).await?;
    let worker = world.process("worker", &[]).await?;
    let tokens = tokens(world);
    let mut rounds = Vec::new();
    for round in 0..3 {
        tell(&format!("accepting {ACCEPTED} orders, round {} of 3", round + 1));
        let sale = sale(&format!("rush-{round}"), PLENTY)?;
        open_sale(&gate, &store, &sale).await?;
        let message = message(&sale)?;
        let ceiling = bare::publish(&broker, ACCEPTED as usize, UNDER_WAY, &message).await?;
        let buyers = requests(&tokens, sale.id.as_str(), 0..ACCEPTED)?;
        let before = world.cpu()?;
        let told = load::closed(front.buyers, &buyers, UNDER_WAY, 1).await?;
        rounds.push((told.all(202)?.rate(), ceiling));
        until_persisted(&gate, &sale).await?;
        tell(&per_order(&before, &world.cpu()?, ACCEPTED));
    }
    let figure = Figure::beside(
        "accepted (202 after the confirm); bare publishing",
        "orders/s",
        rounds,
        Wanted::Ratio(1.0),
    );
    world.end(worker).await;
    world.end(front).await;
    Ok(vec![figure])
}

/// Where the CPU goes, in microseconds per order.
pub(super) fn per_order(before: &[(String, f64)], after: &[(String, f64)], orders: u64) -> String {
    let each = before
        .iter()
        .zip(after)
        .map(|((name, before), (_, after))| (name, (after - before) * 1_000_000.0 / orders as f64));
    let each: Vec<_> = each.collect();
    let all: f64 = each.iter().map(|(_, micros)| micros).sum();
    let parts: Vec<String> = each.iter().map(|(name, micros)| format!("{name} {micros:.0}")).collect();
    format!("CPU per order: {all:.0} us: {}", parts.join(", "))
}

fn message(sale: &crate::domain::Sale) -> Result<Vec<u8>, BenchError> {
    let number = crate::domain::Number { epoch: 1, seq: 7 };
    let order: Order = super::world::attempt(sale, 7)?.admitted(number, 1, crate::domain::Millis::now());
    serde_json::to_vec(&serde_json::json!({ "v": 1, "orders": [order] })).map_err(broken)
}

/// 5,000 requests a second for 10,000 units: the first 10,000 are accepted, the others are too late.
pub(super) async fn rush(world: &mut World, tell: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    const RATE: u32 = 5_000;
    const UNITS: u32 = 10_000;
    tell("5,000 requests per second for 10,000 units");
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let front = world.process("front", &[]).await?;
    let worker = world.process("worker", &[]).await?;
    let sale = sale("noon", UNITS)?;
    open_sale(&gate, &store, &sale).await?;
    let crowd = requests(&tokens(world), "noon", 0..50_000)?;
    let told = load::at_rate(front.buyers, &crowd, 500, RATE).await?;
    let (Some(accepted), Some(late)) = (told.of(202), told.of(409)) else {
        return Err(broken(format!("{UNITS} units, and {:?}", told.statuses())));
    };
    if accepted.len() != u64::from(UNITS) {
        return Err(broken(format!("{UNITS} units, and {:?}", told.statuses())));
    }
    until_persisted(&gate, &sale).await?;
    let answered = (accepted.len() + late.len()) as f64 / crowd.len() as f64 * 100.0;
    let mean = |latency: &Histogram<u64>| latency.mean() / 1000.0;
    let p99 = |latency: &Histogram<u64>| latency.value_at_quantile(0.99) as f64 / 1000.0;
    let waited = async |what| metric(front.operations, what, 0.99).await.map(|seconds| seconds * 1000.0);
    let all = &told.latency;
    let figures = vec![
        Figure::limit("5,000 requests/s: mean", "ms", mean(all), Wanted::AtMost(5.0)),
        Figure::limit("5,000 requests/s: p99", "ms", p99(all), Wanted::AtMost(25.0)),
        Figure::limit("5,000 requests/s: answered", "%", answered, Wanted::AtLeast(100.0)),
        Figure::limit("of them accepted: mean", "ms", mean(accepted), Wanted::Informational),
        Figure::limit("of them accepted: p99", "ms", p99(accepted), Wanted::Informational),
        Figure::limit("of them sold out: p99", "ms", p99(late), Wanted::Informational),
        Figure::limit(
            "a call of the gate: p99",
            "ms",
            waited("gate_admit_seconds").await?,
            Wanted::Informational,
        ),
        Figure::limit(
            "a confirm of the broker: p99",
            "ms",
            waited("relay_confirm_seconds").await?,
            Wanted::Informational,
        ),
    ];
    world.end(worker).await;
    world.end(front).await;
    Ok(figures)
}

/// A quantile of a histogram in `/metrics`, as it was over the last minute.
async fn metric(operations: SocketAddr, name: &str, quantile: f64) -> Result<f64, BenchError> {
    let text = load::get(operations, "/metrics").await.unwrap_or_default();
    let start = format!("{name}{{quantile=\"{quantile}\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&start)?.trim().parse().ok());
    value.ok_or_else(|| broken(format!("/metrics has no {start}")))
}

/// A front with connections that say nothing.
pub(super) async fn idle(world: &mut World, tell: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    tell("10,000 idle connections");
    let front = world.process("front", &["front.header_within_ms=60000"]).await?;
    let before = resident_mb(front.pid)?;
    let streams = load::idle(front.buyers, IDLE).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let silent = resident_mb(front.pid)?;
    drop(streams);
    let asked = load::idle_after_asking(front.buyers, "/v1/sales/none", IDLE).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = resident_mb(front.pid)?;
    drop(asked);
    world.end(front).await;
    Ok(vec![
        Figure::limit(
            "front with 10,000 connections that have said nothing",
            "MB",
            silent,
            Wanted::AtMost(100.0),
        ),
        Figure::limit("of which it has without any", "MB", before, Wanted::Informational),
        Figure::limit(
            "the same when each has asked once and is kept alive",
            "MB",
            after,
            Wanted::Informational,
        ),
    ])
}

/// How much Redis holds for what is at rest.
pub(super) async fn redis_memory(world: &World, tell: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    const ORDERS: u64 = 100_000;
    const SALES: u64 = 1_000;
    tell("Redis's memory");
    let gate = world.gate()?;
    let used = async || used_memory(world).await;
    let one = sale("memory", PLENTY)?;
    load_and_open(&gate, &one).await?;
    let before = used().await?;
    for from in (0..ORDERS).step_by(200) {
        let orders = super::persist::accept(&gate, &one, from..from + 200).await?;
        let settled: Vec<_> = orders
            .into_iter()
            .map(|order| crate::gate::Settlement {
                id: order.id,
                user: order.user,
                outcome: crate::gate::Outcome::Kept,
            })
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

async fn load_and_open(gate: &Gate, sale: &crate::domain::Sale) -> Result<(), BenchError> {
    use crate::domain::SaleState;
    gate.load(sale, &crate::gate::Versions::default()).await.map_err(broken)?;
    gate.move_sale(&sale.id, SaleState::Open, &[SaleState::Draft]).await.map_err(broken)?;
    Ok(())
}

pub(super) async fn used_memory(world: &World) -> Result<f64, BenchError> {
    let mut connection =
        redis::Client::open(world.url(Kind::Redis)?.as_str())?.get_multiplexed_async_connection().await?;
    let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await?;
    let bytes = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    bytes.and_then(|bytes| bytes.trim().parse().ok()).ok_or_else(|| broken("redis tells no used_memory"))
}
