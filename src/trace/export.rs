//! Sending spans to the collector.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::finished::Finished;
use super::otlp::encode;
use super::recorder::{Sampling, dropped, install};
use crate::link::with_causes;

/// Spans in one request.
const MOST: usize = 512;

/// How long spans wait for others.
const EVERY: Duration = Duration::from_secs(1);

/// How long the collector may take to answer.
const WITHIN: Duration = Duration::from_secs(5);

/// How long a process that stops waits for its last spans, and for the collector to take them.
const LAST: Duration = Duration::from_millis(500);

/// How much of an answer is read, so that its connection can be used again.
const READ: usize = 16 * 1024;

/// Why the collector did not take spans.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("{0}")]
    Unreachable(String),
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
}

/// Sends the spans of this process to a collector.
pub struct Exporter {
    service: &'static str,
    url: Uri,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    waiting: mpsc::Receiver<Finished>,
    /// Whether the last request failed.
    fails: bool,
}

impl Exporter {
    /// Begins to record. Connects to nothing yet. `None` if this process records already.
    pub fn open(service: &'static str, url: Uri, sampling: Sampling) -> Option<Self> {
        let tls = rustls::ClientConfig::builder().with_native_roots();
        let tls = tls.unwrap_or_else(|error| {
            tracing::debug!(%error, "this host has no root certificates for the collector of traces");
            rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty())
        });
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls.with_no_client_auth())
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let waiting = install(sampling)?;
        Some(Self { service, url, client, waiting, fails: false })
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
        let sent = tokio::time::timeout(within, self.request(encode(self.service, spans))).await;
        match sent.unwrap_or(Err(NotTaken::TimedOut(within))) {
            Ok(()) => {
                metrics::counter!("doorbuster_trace_spans_total", "result" => "sent").increment(count as u64);
                self.fails = false;
            }
            Err(why) => {
                dropped(count);
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(%why, url = %self.url, "the collector takes no traces; spans are dropped");
                }
            }
        }
    }

    async fn request(&self, body: Vec<u8>) -> Result<(), NotTaken> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.url.clone())
            .header("content-type", "application/x-protobuf")
            .header("user-agent", concat!("Doorbuster/", env!("CARGO_PKG_VERSION")))
            .body(Full::from(body))?;
        let unreachable = |error| NotTaken::Unreachable(with_causes(&error));
        let answer = self.client.request(request).await.map_err(unreachable)?;
        let status = answer.status();
        let _ = Limited::new(answer.into_body(), READ).collect().await;
        if status.is_success() { Ok(()) } else { Err(NotTaken::Status(status)) }
    }
}
