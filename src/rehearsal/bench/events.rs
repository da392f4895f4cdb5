//! Streams of events: how soon a change of an order reaches its buyer, and what open streams cost.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use hdrhistogram::Histogram;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::buyers::{requests, tokens};
use super::error::{BenchError, broken};
use super::load::{self, order};
use super::proc::{cpu_seconds, resident_mb};
use super::report::{Figure, Wanted};
use super::sample::{PLENTY, open_sale, sale, user};
use super::world::{Process, World};
use crate::domain::Millis;
use crate::front::Signer;
use crate::rehearsal::servers::Kind;

const SALE: &str = "followed";

/// Orders per second of the crowd, and for how many seconds.
const RATE: u32 = 2_000;
const SECONDS: u32 = 10;

/// Buyers who follow their orders in that time. Their numbers begin after those of the crowd.
const FOLLOWERS: u64 = 1_000;
const FIRST: u64 = 1_000_000;

/// Streams that are open and silent.
const IDLE: u64 = 10_000;

/// How long the cost of the silent streams is measured.
const CALM: Duration = Duration::from_secs(20);

/// The longest wait for an event.
const LONGEST: Duration = Duration::from_secs(30);

pub(super) async fn events(world: &mut World, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let (gate, store) = (world.gate()?, world.store(Kind::Postgres).await?);
    let front = world.process("front", &[]).await?;
    let other = world.process("front", &[]).await?;
    let worker = world.process("worker", &[]).await?;
    open_sale(&gate, &store, &sale(SALE, PLENTY)?).await?;

    announce("2,000 orders per second at one front, and 100 buyers per second who follow theirs at another");
    let tokens = tokens(world);
    let crowd = requests(&tokens, SALE, 0..u64::from(RATE * SECONDS))?;
    let (crowd, followed) = tokio::join!(
        load::at_rate(front.buyers, &crowd, 500, RATE),
        follow_all(&tokens, front.buyers, other.buyers)
    );
    let (confirmed, cancelled) = followed?;
    crowd?.all(202)?;
    let mut figures = Vec::new();
    for (what, latency) in [
        ("confirmed -> event at another front: p99", &confirmed),
        ("cancellation answered -> event at another front: p99", &cancelled),
    ] {
        let (p99, longest) = (latency.value_at_quantile(0.99) as f64, latency.max() as f64);
        figures.push(Figure::limit(what, "ms", p99, Wanted::AtMost(200.0)));
        figures.push(Figure::limit("the same: longest", "ms", longest, Wanted::Informational));
    }
    world.end(other).await;

    let third = world.process("front", &[]).await?;
    figures.extend(idle(&tokens, &front, &third, announce).await?);
    world.end(third).await;
    let fourth = world.process("front", &["front.event_streams=20000"]).await?;
    figures.extend(followers_of_the_sale(&fourth, announce).await?);
    world.end(fourth).await;
    world.end(worker).await;
    world.end(front).await;
    Ok(figures)
}

/// Milliseconds until an event was read: from the time of the confirmation by the database's clock, which is this
/// machine's, and from the answer to the cancellation.
async fn follow_all(
    tokens: &Signer,
    placed_at: SocketAddr,
    followed_at: SocketAddr,
) -> Result<(Histogram<u64>, Histogram<u64>), BenchError> {
    let histogram = || Histogram::new(3).map_err(broken);
    let (mut confirmed, mut cancelled) = (histogram()?, histogram()?);
    let spacing = Duration::from_secs(u64::from(SECONDS)) / FOLLOWERS as u32;
    let begun = tokio::time::Instant::now();
    let buyers = stream::iter(0..FOLLOWERS).map(|nth| async move {
        tokio::time::sleep_until(begun + spacing * nth as u32).await;
        follow(&tokens.mint(&user(FIRST + nth)?, None, 86_400), placed_at, followed_at).await
    });
    let late: Vec<(u64, u64)> = buyers.buffer_unordered(FOLLOWERS as usize).try_collect().await?;
    for (of_confirmed, of_cancelled) in late {
        confirmed.record(of_confirmed).map_err(broken)?;
        cancelled.record(of_cancelled).map_err(broken)?;
    }
    Ok((confirmed, cancelled))
}

async fn follow(
    token: &str,
    placed_at: SocketAddr,
    followed_at: SocketAddr,
) -> Result<(u64, u64), BenchError> {
    let path = place(placed_at, token).await?;
    let mut events = Events::open(followed_at, &path, token).await?;
    let confirmed = events.until("confirmed").await?;
    let cancel = format!(
        "POST {path}:cancel HTTP/1.1\r\nhost: doorbuster\r\nauthorization: Bearer {token}\r\n\
         content-length: 0\r\nconnection: close\r\n\r\n"
    );
    let answered = async {
        exchange(placed_at, cancel.as_bytes()).await?;
        Ok::<_, BenchError>(Millis::now())
    };
    let (answered, read) = tokio::try_join!(answered, async {
        events.until("cancelled").await?;
        Ok(Millis::now())
    })?;
    Ok((confirmed, u64::try_from(read.0 - answered.0).unwrap_or_default()))
}

/// Places an order, and returns its path.
async fn place(at: SocketAddr, token: &str) -> Result<String, BenchError> {
    let answer = exchange(at, &closing(order(SALE, token, None))).await?;
    let location = answer.lines().find_map(|line| line.strip_prefix("location: "));
    location.map(str::to_owned).ok_or_else(|| broken(format!("no order: {answer}")))
}

/// The request, on a connection that ends with it.
fn closing(request: Vec<u8>) -> Vec<u8> {
    let head = b"host: doorbuster\r\n";
    let at = request.windows(head.len()).position(|part| part == head).unwrap_or_default();
    let mut request = request;
    request.splice(at..at, *b"connection: close\r\n");
    request
}

/// The whole answer to one request, on a connection of its own that the server closes.
async fn exchange(at: SocketAddr, request: &[u8]) -> Result<String, BenchError> {
    let mut stream = TcpStream::connect(at).await.map_err(broken)?;
    stream.write_all(request).await.map_err(broken)?;
    let mut answer = String::new();
    let read = tokio::time::timeout(LONGEST, stream.read_to_string(&mut answer));
    read.await.map_err(broken)?.map_err(broken)?;
    Ok(answer)
}

/// What `IDLE` streams cost a front while nothing happens: their buyers have waited for their payment for a while.
async fn idle(
    tokens: &Signer,
    placed_at: &Process,
    followed_at: &Process,
    announce: &impl Fn(&str),
) -> Result<Vec<Figure>, BenchError> {
    announce("10,000 buyers who follow their orders, in which nothing happens");
    let buyers: Vec<u64> = (2 * FIRST..2 * FIRST + IDLE).collect();
    let streams = stream::iter(buyers).map(|nth| async move {
        let token = tokens.mint(&user(nth)?, None, 86_400);
        let path = place(placed_at.buyers, &token).await?;
        let mut events = Events::open(followed_at.buyers, &path, &token).await?;
        events.until("confirmed").await?;
        Ok::<Events, BenchError>(events)
    });
    let open: Vec<Events> = streams.buffer_unordered(200).try_collect().await?;
    let (used, memory) = in_calm(followed_at).await?;
    drop(open);
    Ok(vec![
        Figure::limit(
            "10,000 open streams of orders: memory of the front",
            "MB",
            memory,
            Wanted::AtMost(200.0),
        ),
        Figure::limit("10,000 open streams of orders: a core", "%", used, Wanted::AtMost(10.0)),
    ])
}

/// The percentage of a core that the front uses while nothing happens, and its megabytes then.
async fn in_calm(front: &Process) -> Result<(f64, f64), BenchError> {
    let before = cpu_seconds(front.pid)?;
    tokio::time::sleep(CALM).await;
    let used = (cpu_seconds(front.pid)? - before) / CALM.as_secs_f64() * 100.0;
    Ok((used, resident_mb(front.pid)?))
}

/// What `IDLE` streams of the sale itself cost a front while nothing happens.
async fn followers_of_the_sale(front: &Process, announce: &impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    announce("10,000 buyers who follow the sale, in which nothing happens");
    let streams = stream::iter(0..IDLE).map(|_| async {
        let mut events = Events::open(front.buyers, &format!("/v1/sales/{SALE}"), "").await?;
        events.begin().await?;
        Ok::<Events, BenchError>(events)
    });
    let open: Vec<Events> = streams.buffer_unordered(200).try_collect().await?;
    let (used, memory) = in_calm(front).await?;
    drop(open);
    Ok(vec![
        Figure::limit(
            "10,000 open streams of the sale: memory of the front",
            "MB",
            memory,
            Wanted::AtMost(200.0),
        ),
        Figure::limit("10,000 open streams of the sale: a core", "%", used, Wanted::AtMost(10.0)),
    ])
}

/// One open stream.
struct Events {
    lines: BufReader<OwnedReadHalf>,
    _write: OwnedWriteHalf,
}

impl Events {
    /// The events of an order, or of a sale, which need no token.
    async fn open(at: SocketAddr, of: &str, token: &str) -> Result<Self, BenchError> {
        let (read, mut write) = TcpStream::connect(at).await.map_err(broken)?.into_split();
        let token =
            if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
        let head = format!("GET {of}/events HTTP/1.1\r\nhost: doorbuster\r\n{token}\r\n");
        write.write_all(head.as_bytes()).await.map_err(broken)?;
        Ok(Self { lines: BufReader::with_capacity(1_024, read), _write: write })
    }

    /// Reads until the first event.
    async fn begin(&mut self) -> Result<(), BenchError> {
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            let read = tokio::time::timeout(LONGEST, self.lines.read_line(&mut line));
            if read.await.map_err(broken)?.map_err(broken)? == 0 {
                return Err(broken("the stream ended before its first event"));
            }
        }
        Ok(())
    }

    /// Milliseconds from the time when the order had reached this state until its event was read.
    async fn until(&mut self, state: &str) -> Result<u64, BenchError> {
        loop {
            let mut line = String::new();
            let read = tokio::time::timeout(LONGEST, self.lines.read_line(&mut line));
            if read.await.map_err(broken)?.map_err(broken)? == 0 {
                return Err(broken(format!("the stream ended before the order was {state}")));
            }
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let order: Value = serde_json::from_str(data.trim_end()).map_err(broken)?;
            if order["status"] != state {
                continue;
            }
            let reached = order["history"].as_array().and_then(|steps| steps.last());
            let reached: Millis = reached
                .and_then(|step| serde_json::from_value(step["at"].clone()).ok())
                .ok_or_else(|| broken(format!("an event without a time: {line}")))?;
            return Ok(u64::try_from(Millis::now().0 - reached.0).unwrap_or_default());
        }
    }
}
