//! Sending spans to the collector.

use std::time::Duration;

use http_body_util::Full;
use hyper::{HeaderMap, Method, Request, Uri};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::finished::Finished;
use super::otlp::encode;
use super::recorder::{Sampling, dropped, install};
use crate::link::{PostError, Poster, Reach};

/// Spans in one request.
const MOST: usize = 512;

/// How long spans wait for others.
const EVERY: Duration = Duration::from_secs(1);

/// How long the collector may take to answer.
const WITHIN: Duration = Duration::from_secs(5);

/// How long a process that stops waits for its last spans, and for the collector to take them.
const LAST: Duration = Duration::from_millis(500);

/// What takes traces.
#[derive(Debug)]
pub struct Collector {
    /// Where it takes them, as OTLP over HTTP has it.
    pub url: Uri,
    /// What it wants beside them, such as the key of an account.
    pub headers: HeaderMap,
}

/// Sends the spans of this process to a collector.
pub struct Exporter {
    service: &'static str,
    collector: Collector,
    poster: Poster,
    waiting: mpsc::Receiver<Finished>,
    /// Whether the last request failed.
    fails: bool,
}

impl Exporter {
    /// Begins to record. Connects to nothing yet. `None` if this process records already.
    pub fn open(service: &'static str, collector: Collector, sampling: Sampling) -> Option<Self> {
        let waiting = install(sampling)?;
        Some(Self { service, collector, poster: Poster::new(Reach::EVERYWHERE), waiting, fails: false })
    }

    /// Runs until `stop`, and then sends what is left. A failure is logged once, until a request succeeds again.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut spans = Vec::new();
        loop {
            let first = self.waiting.recv_many(&mut spans, MOST);
            let goes_on = stop.run_until_cancelled(first).await.is_some();
            let pause = if goes_on { EVERY } else { LAST };
            let waited = tokio::time::sleep(pause);
            if !goes_on {
                waited.await;
            } else if spans.len() < MOST {
                let _ = stop.run_until_cancelled(waited).await;
            }
            while spans.len() < MOST
                && let Ok(span) = self.waiting.try_recv()
            {
                spans.push(span);
            }
            let count = spans.len();
            let batch = std::mem::take(&mut spans);
            if !goes_on {
                self.send(batch, LAST).await;
                return;
            }
            // A collector that does not answer holds up no stop.
            if stop.run_until_cancelled(self.send(batch, WITHIN)).await.is_none() {
                dropped(count);
            }
        }
    }

    async fn send(&mut self, spans: Vec<Finished>, within: Duration) {
        if spans.is_empty() {
            return;
        }
        let count = spans.len();
        match self.post(encode(self.service, spans), within).await {
            Ok(()) => {
                metrics::counter!("doorbuster_trace_spans_total", "result" => "sent").increment(count as u64);
                self.fails = false;
            }
            Err(why) => {
                dropped(count);
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(%why, url = %self.collector.url, "the collector takes no traces; spans are dropped");
                }
            }
        }
    }

    async fn post(&self, body: Vec<u8>, within: Duration) -> Result<(), PostError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.collector.url.clone())
            .header("content-type", "application/x-protobuf")
            .header("user-agent", concat!("Doorbuster/", env!("CARGO_PKG_VERSION")))
            .body(Full::from(body))?;
        request.headers_mut().extend(self.collector.headers.clone());
        self.poster.send(request, within).await
    }
}
