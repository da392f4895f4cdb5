//! A plain, fast HTTP load: prepared requests over connections that stay open. It shares the cores with the process
//! under test, so it does as little as possible.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::error::{BenchError, broken};

/// How long an answer may take before the connection is dropped.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The answers to a load.
pub(super) struct Answers {
    pub(super) seconds: f64,
    /// Latency of every answer, in microseconds from the time its request was due.
    pub(super) latency: Histogram<u64>,
    /// The same by status; 0 stands for no answer.
    by_status: BTreeMap<u16, Histogram<u64>>,
}

impl Answers {
    /// Answers per second.
    pub(super) fn rate(&self) -> f64 {
        self.latency.len() as f64 / self.seconds
    }

    /// The latency of the answers with this status.
    pub(super) fn of(&self, status: u16) -> Option<&Histogram<u64>> {
        self.by_status.get(&status)
    }

    /// How often each status occurred.
    pub(super) fn statuses(&self) -> BTreeMap<u16, u64> {
        self.by_status.iter().map(|(status, latency)| (*status, latency.len())).collect()
    }

    /// How many answers have another status.
    pub(super) fn others(&self, status: u16) -> u64 {
        self.latency.len() - self.of(status).map_or(0, Histogram::len)
    }

    /// Fails unless every answer has this status.
    pub(super) fn all(&self, status: u16) -> Result<&Self, BenchError> {
        if self.by_status.keys().eq([&status]) {
            return Ok(self);
        }
        Err(broken(format!("every answer should have been {status}: {:?}", self.statuses())))
    }
}

/// The bytes of a POST request for an order.
pub(super) fn order(sale: &str, bearer: &str, key: Option<&str>) -> Vec<u8> {
    let body = r#"{"sku":"shoe","quantity":1}"#;
    let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
    format!(
        "POST /v1/sales/{sale}/orders HTTP/1.1\r\nhost: doorbuster\r\nauthorization: Bearer {bearer}\r\n\
         content-type: application/json\r\n{key}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A closed-loop load: each connection sends the next request once its last one is answered. The list of requests is
/// sent `times` times.
pub(super) async fn closed(
    address: SocketAddr,
    requests: &Arc<Vec<Vec<u8>>>,
    connections: usize,
    times: usize,
) -> Result<Answers, BenchError> {
    run(address, requests, connections, requests.len() * times, None).await
}

/// An open-loop load at a fixed rate per second: a request does not wait for earlier answers, only for a free
/// connection. Latency counts from the time a request was due.
pub(super) async fn at_rate(
    address: SocketAddr,
    requests: &Arc<Vec<Vec<u8>>>,
    connections: usize,
    rate: u32,
) -> Result<Answers, BenchError> {
    run(address, requests, connections, requests.len(), Some(rate)).await
}

/// The same for some seconds, with the requests over and over.
pub(super) async fn flood(
    address: SocketAddr,
    requests: &Arc<Vec<Vec<u8>>>,
    connections: usize,
    (rate, seconds): (u32, u32),
) -> Result<Answers, BenchError> {
    run(address, requests, connections, rate as usize * seconds as usize, Some(rate)).await
}

async fn run(
    address: SocketAddr,
    requests: &Arc<Vec<Vec<u8>>>,
    connections: usize,
    count: usize,
    rate: Option<u32>,
) -> Result<Answers, BenchError> {
    let mut streams = Vec::new();
    for _ in 0..connections {
        streams.push(connect(address).await?);
    }
    let start = Instant::now();
    let lane = Lane { address, requests: requests.clone(), next: Arc::default(), count, rate, start };
    let lanes: Vec<_> = streams.into_iter().map(|stream| tokio::spawn(lane.clone().run(stream))).collect();
    let mut answers = Answers { seconds: 0.0, latency: histogram(), by_status: BTreeMap::new() };
    for lane in lanes {
        for (status, latency) in lane.await.map_err(broken)? {
            answers.latency.add(&latency).map_err(broken)?;
            answers.by_status.entry(status).or_insert_with(histogram).add(latency).map_err(broken)?;
        }
    }
    answers.seconds = start.elapsed().as_secs_f64();
    Ok(answers)
}

/// State shared by the connections of a load.
#[derive(Clone)]
struct Lane {
    address: SocketAddr,
    requests: Arc<Vec<Vec<u8>>>,
    /// The number of the next request.
    next: Arc<AtomicUsize>,
    count: usize,
    rate: Option<u32>,
    start: Instant,
}

impl Lane {
    /// Sends requests over one connection until none is left. Ends early if it cannot reconnect.
    async fn run(self, mut stream: TcpStream) -> BTreeMap<u16, Histogram<u64>> {
        let mut by_status = BTreeMap::new();
        let mut buffer = Vec::with_capacity(4_096);
        loop {
            let nth = self.next.fetch_add(1, Ordering::Relaxed);
            if nth >= self.count {
                return by_status;
            }
            let due = self.wait_until_due(nth).await;
            let sent = exchange(&mut stream, &self.requests[nth % self.requests.len()], &mut buffer);
            let status = match tokio::time::timeout(TIMEOUT, sent).await {
                Ok(Ok(status)) => status,
                _ => 0,
            };
            let micros = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
            by_status.entry(status).or_insert_with(histogram).saturating_record(micros);
            if status == 0 {
                match connect(self.address).await {
                    Ok(again) => stream = again,
                    Err(_) => return by_status,
                }
            }
        }
    }

    async fn wait_until_due(&self, nth: usize) -> Instant {
        let Some(rate) = self.rate else { return Instant::now() };
        let due = self.start + Duration::from_secs_f64(nth as f64 / f64::from(rate));
        tokio::time::sleep_until(due).await;
        due
    }
}

fn histogram() -> Histogram<u64> {
    // Microseconds, up to a minute, with three digits.
    Histogram::new_with_bounds(1, 60_000_000, 3).unwrap_or_else(|_| unreachable!("the bounds are valid"))
}

/// Opens idle connections.
pub(super) async fn idle(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>, BenchError> {
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        streams.push(connect(address).await?);
    }
    Ok(streams)
}

/// Opens connections that stay idle after one request and its answer.
pub(super) async fn idle_after_one_answer(
    address: SocketAddr,
    path: &str,
    count: usize,
) -> Result<Vec<TcpStream>, BenchError> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: doorbuster\r\n\r\n");
    let ask = async |()| {
        let mut stream = connect(address).await?;
        exchange(&mut stream, request.as_bytes(), &mut Vec::new()).await.map_err(broken)?;
        Ok(stream)
    };
    // One after the other, the last would be asked when the front has closed the first, which has been silent too long.
    stream::iter((0..count).map(|_| ())).map(ask).buffer_unordered(ASKED_AT_ONCE).try_collect().await
}

const ASKED_AT_ONCE: usize = 64;

async fn connect(address: SocketAddr) -> Result<TcpStream, BenchError> {
    let stream = TcpStream::connect(address).await.map_err(broken)?;
    stream.set_nodelay(true).map_err(broken)?;
    Ok(stream)
}

/// The answer to a GET, head and body; `None` if there is none.
pub(super) async fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: doorbuster\r\n\r\n");
    let mut answer = Vec::new();
    exchange(&mut stream, request.as_bytes(), &mut answer).await.ok()?;
    String::from_utf8(answer).ok()
}

/// Sends a request, and returns the status of the complete answer.
async fn exchange(stream: &mut TcpStream, request: &[u8], buffer: &mut Vec<u8>) -> std::io::Result<u16> {
    stream.write_all(request).await?;
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(status) = complete(buffer) {
            return Ok(status);
        }
    }
}

/// The status, if the answer has arrived with its whole body.
fn complete(answer: &[u8]) -> Option<u16> {
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let name = b"content-length: ";
    let length = match answer[..head].windows(name.len()).position(|bytes| bytes == name) {
        Some(at) => {
            let digits = answer[at + name.len()..head].iter().take_while(|byte| byte.is_ascii_digit());
            digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'))
        }
        None => 0,
    };
    let status = std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()?;
    (answer.len() >= head + length).then_some(status)
}
