//! A plain and quick HTTP load: requests that were made before, over connections that stay open. It runs on
//! the same cores as what it measures, so it does no more than it must.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::{BenchError, broken};

/// How long an answer may take before the connection is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a load was answered.
pub(super) struct Told {
    pub(super) seconds: f64,
    /// All of them, in microseconds from when a request was due.
    pub(super) latency: Histogram<u64>,
    /// The same for each status; 0 for no answer.
    by_status: BTreeMap<u16, Histogram<u64>>,
}

impl Told {
    pub(super) fn rate(&self) -> f64 {
        self.latency.len() as f64 / self.seconds
    }

    /// Those that were answered with this status.
    pub(super) fn of(&self, status: u16) -> Option<&Histogram<u64>> {
        self.by_status.get(&status)
    }

    /// How often each status was answered.
    pub(super) fn statuses(&self) -> BTreeMap<u16, u64> {
        self.by_status.iter().map(|(status, latency)| (*status, latency.len())).collect()
    }

    /// Every request was answered with this status.
    pub(super) fn all(&self, status: u16) -> Result<&Self, BenchError> {
        if self.by_status.keys().eq([&status]) {
            return Ok(self);
        }
        Err(broken(format!("every answer should have been {status}: {:?}", self.statuses())))
    }
}

/// A POST of an order, byte for byte.
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

/// As fast as they are answered: each connection sends the next request when its last one was answered.
/// `times`: how often the list of requests is gone through.
pub(super) async fn closed(
    address: SocketAddr,
    requests: &Arc<Vec<Vec<u8>>>,
    connections: usize,
    times: usize,
) -> Result<Told, BenchError> {
    run(address, requests, connections, requests.len() * times, None).await
}

/// At a fixed rate per second, whether or not those before were answered, as long as a connection is free.
/// A latency counts from when its request was due.
pub(super) async fn at_rate(
    address: SocketAddr,
    requests: &Arc<Vec<Vec<u8>>>,
    connections: usize,
    rate: u32,
) -> Result<Told, BenchError> {
    run(address, requests, connections, requests.len(), Some(rate)).await
}

async fn run(
    address: SocketAddr,
    requests: &Arc<Vec<Vec<u8>>>,
    connections: usize,
    count: usize,
    rate: Option<u32>,
) -> Result<Told, BenchError> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut streams = Vec::new();
    for _ in 0..connections {
        streams.push(connect(address).await?);
    }
    let start = Instant::now();
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            let (next, requests) = (next.clone(), requests.clone());
            tokio::spawn(async move {
                let mut by_status = BTreeMap::new();
                let mut buffer = Vec::with_capacity(4_096);
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= count {
                        return by_status;
                    }
                    let due = match rate {
                        Some(rate) => {
                            let due = start + Duration::from_secs_f64(nth as f64 / f64::from(rate));
                            tokio::time::sleep_until(due).await;
                            due
                        }
                        None => Instant::now(),
                    };
                    let sent = exchange(&mut stream, &requests[nth % requests.len()], &mut buffer);
                    let status = match tokio::time::timeout(PATIENCE, sent).await {
                        Ok(Ok(status)) => status,
                        _ => 0,
                    };
                    let micros = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
                    by_status.entry(status).or_insert_with(histogram).saturating_record(micros);
                    if status == 0 {
                        match connect(address).await {
                            Ok(again) => stream = again,
                            Err(_) => return by_status,
                        }
                    }
                }
            })
        })
        .collect();
    let mut told = Told { seconds: 0.0, latency: histogram(), by_status: BTreeMap::new() };
    for task in tasks {
        for (status, latency) in task.await.map_err(broken)? {
            told.latency.add(&latency).map_err(broken)?;
            told.by_status.entry(status).or_insert_with(histogram).add(latency).map_err(broken)?;
        }
    }
    told.seconds = start.elapsed().as_secs_f64();
    Ok(told)
}

fn histogram() -> Histogram<u64> {
    // From a microsecond to a minute, three digits: these bounds are ones that it takes.
    Histogram::new_with_bounds(1, 60_000_000, 3).unwrap_or_else(|_| unreachable!("bounds that it takes"))
}

/// Opens connections and leaves them idle.
pub(super) async fn idle(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>, BenchError> {
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        streams.push(connect(address).await?);
    }
    Ok(streams)
}

/// The same, after each has had one answer.
pub(super) async fn idle_after_asking(
    address: SocketAddr,
    path: &str,
    count: usize,
) -> Result<Vec<TcpStream>, BenchError> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: doorbuster\r\n\r\n");
    let mut streams = idle(address, count).await?;
    for stream in &mut streams {
        exchange(stream, request.as_bytes(), &mut Vec::new()).await.map_err(broken)?;
    }
    Ok(streams)
}

async fn connect(address: SocketAddr) -> Result<TcpStream, BenchError> {
    let stream = TcpStream::connect(address).await.map_err(broken)?;
    stream.set_nodelay(true).map_err(broken)?;
    Ok(stream)
}

/// What a GET is answered, head and body; `None` where nobody answers.
pub(super) async fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: doorbuster\r\n\r\n");
    let mut answer = Vec::new();
    exchange(&mut stream, request.as_bytes(), &mut answer).await.ok()?;
    String::from_utf8(answer).ok()
}

async fn exchange(stream: &mut TcpStream, request: &[u8], buffer: &mut Vec<u8>) -> std::io::Result<u16> {
    stream.write_all(request).await?;
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(status) = whole(buffer) {
            return Ok(status);
        }
    }
}

/// The status of an answer that has come with all of its body.
fn whole(answer: &[u8]) -> Option<u16> {
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
