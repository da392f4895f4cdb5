//! A rush next to a flood of callers without any right.

use std::sync::Arc;

use super::buyers::{Login, requests, tokens};
use super::error::{BenchError, broken};
use super::load::{self, Answers, order};
use super::orders::until_persisted;
use super::report::{Figure, Wanted};
use super::sample::{open_sale, sale, user};
use super::world::World;
use crate::domain::UserId;
use crate::front::{AuthSettings, Signer};
use crate::rehearsal::servers::Kind;

/// How long each rush lasts, in seconds.
const SECONDS: u32 = 60;

/// Buyers per second, and the units that they want.
const RATE: u32 = 2_000;
const UNITS: u32 = 2_000;

/// Attempts per second of strangers: a million in a minute.
const STRANGERS: u32 = 16_667;

/// The addresses that they come from, and the buyers.
const THEIR_ADDRESSES: u32 = 200;
const BUYERS_ADDRESSES: u32 = 50_000;

/// How the proxy in front names its clients.
const HEADER: &str = "x-forwarded-for";

/// The 99th percentile of the same rush: calm, and with a million attempts in a minute whose tokens are forged, with a
/// secret and with a key.
pub(super) async fn strangers(
    world: &mut World,
    announce: &impl Fn(&str),
) -> Result<Vec<Figure>, BenchError> {
    let public_key = format!("auth.public_key={}", Login::new()?.x);
    let header = format!("front.address_header={HEADER}");
    let front = world.process("front", &[&public_key, &header]).await?;
    let worker = world.process("worker", &[]).await?;
    let secret =
        Signer::new(AuthSettings::with_secret("a secret that the front does not know, and long enough"));
    let with_a_secret = forged("secret", |user| Ok(secret.mint(user, None, 86_400)))?;
    let login = Login::new()?;
    let with_a_key = forged("key", |user| login.token(user))?;

    announce("a calm rush, 2,000 requests per second for a minute");
    let calm = one_rush(world, front.buyers, "calm").await?;
    let mut figures = vec![Figure::limit("a calm rush: p99", "ms", calm, Wanted::Informational)];
    for (sale, flood, what, times) in [
        (
            "secret",
            with_a_secret,
            "with forged HS256 tokens: p99",
            "with forged HS256 tokens: p99 to the calm one",
        ),
        ("key", with_a_key, "with forged EdDSA tokens: p99", "with forged EdDSA tokens: p99 to the calm one"),
    ] {
        announce(&format!("the same, {} of 16,667 a second", what.trim_end_matches(": p99")));
        let (flooded, refused) =
            tokio::join!(one_rush(world, front.buyers, sale), yielding_flood(front.buyers, flood));
        let (flooded, refused) = (flooded?, refused?);
        announce(&format!(
            "{:.0} forged tokens a second were refused: {:?}",
            refused.rate(),
            only_refused(&refused)?
        ));
        figures.push(Figure::limit(what, "ms", flooded, Wanted::Informational));
        figures.push(Figure::limit(times, "times", flooded / calm, Wanted::AtMost(2.0)));
    }
    world.end(worker).await;
    world.end(front).await;
    Ok(figures)
}

/// The flood, on threads of its own that yield to everything else on this machine: strangers bring machines of their own.
async fn yielding_flood(
    at: std::net::SocketAddr,
    requests: Arc<Vec<Vec<u8>>>,
) -> Result<Answers, BenchError> {
    let flood = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(|| {
                // Linux has a priority for each thread.
                let _ = rustix::process::nice(19);
            })
            .enable_all()
            .build()
            .map_err(broken)?;
        // On its threads, and not on this one.
        let flooding =
            runtime.spawn(async move { load::flood(at, &requests, 500, (STRANGERS, SECONDS)).await });
        runtime.block_on(flooding).map_err(broken)?
    };
    tokio::task::spawn_blocking(flood).await.map_err(broken)?
}

/// Orders of a thousand buyers whose tokens this signs.
fn forged(
    sale: &str,
    sign: impl Fn(&UserId) -> Result<String, BenchError>,
) -> Result<Arc<Vec<Vec<u8>>>, BenchError> {
    let orders = (0..1_000).map(|nth| Ok(order(sale, &sign(&user(nth)?)?, None)));
    let orders: Vec<Vec<u8>> = orders.collect::<Result<_, BenchError>>()?;
    Ok(through_a_proxy(&orders, 0x2d00_0000, THEIR_ADDRESSES))
}

/// The same requests, each from one of so many addresses.
fn through_a_proxy(requests: &[Vec<u8>], first: u32, addresses: u32) -> Arc<Vec<Vec<u8>>> {
    let from = |(request, nth): (&Vec<u8>, u32)| {
        let address = std::net::Ipv4Addr::from(first + nth % addresses);
        let line = request.windows(2).position(|end| end == b"\r\n").map_or(0, |at| at + 2);
        let named = format!("{HEADER}: {address}\r\n");
        [&request[..line], named.as_bytes(), &request[line..]].concat()
    };
    Arc::new(requests.iter().zip(0..).map(from).collect())
}

/// How many were refused with which status, if none was answered otherwise.
fn only_refused(answers: &Answers) -> Result<std::collections::BTreeMap<u16, u64>, BenchError> {
    let statuses = answers.statuses();
    match statuses.keys().all(|status| [401, 429].contains(status)) {
        true => Ok(statuses),
        false => Err(broken(format!("every answer should have been 401 or 429: {statuses:?}"))),
    }
}

/// The 99th percentile of a rush for a sale of its own, in milliseconds.
async fn one_rush(world: &World, buyers: std::net::SocketAddr, name: &str) -> Result<f64, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let sale = sale(name, UNITS)?;
    open_sale(&gate, &store, &sale).await?;
    let crowd = requests(&tokens(world), name, 0..u64::from(RATE) * u64::from(SECONDS))?;
    let crowd = through_a_proxy(&crowd, 0x2e00_0000, BUYERS_ADDRESSES);
    let answers = load::at_rate(buyers, &crowd, 500, RATE).await?;
    let accepted = answers.of(202).map_or(0, |accepted| accepted.len());
    if accepted != u64::from(UNITS) {
        return Err(broken(format!("{UNITS} units, and {:?}", answers.statuses())));
    }
    until_persisted(&gate, &sale).await?;
    Ok(answers.latency.value_at_quantile(0.99) as f64 / 1000.0)
}
