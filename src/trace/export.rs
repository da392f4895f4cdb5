//! Sending spans to the collector.

use std::time::Duration;

use http_body_util::Full;
use hyper::{HeaderMap, Method, Request, Uri};
use tokio::sync::mpsc;
use tokio::time::Instant;
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
    /// How long the collector may take for the last spans.
    last_within: Duration,
}

impl Exporter {
    /// Begins to record. Connects to nothing yet. `None` if this process records already.
    pub fn open(service: &'static str, collector: Collector, sampling: Sampling) -> Option<Self> {
        let waiting = install(sampling)?;
        let poster = Poster::new(Reach::EVERYWHERE);
        Some(Self { service, collector, poster, waiting, fails: false, last_within: LAST })
    }

    /// Runs until `stop`, and then sends what is left. A failure is logged once, until a request succeeds again.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut spans = Vec::new();
        let until = loop {
            let some = stop.run_until_cancelled(self.waiting.recv_many(&mut spans, MOST)).await.is_some();
            if some && spans.len() < MOST {
                let _ = stop.run_until_cancelled(tokio::time::sleep(EVERY)).await;
            }
            self.fill(&mut spans);
            if stop.is_cancelled() {
                break Instant::now() + LAST;
            }
            let count = spans.len();
            let mut sending = std::pin::pin!(self.send(std::mem::take(&mut spans), WITHIN));
            // A collector that does not answer holds up no stop.
            if stop.run_until_cancelled(&mut sending).await.is_none() {
                let until = Instant::now() + LAST;
                if tokio::time::timeout_at(until, sending).await.is_err() {
                    dropped(count);
                }
                break until;
            }
        };
        // What the process ends with is recorded last. Whatever comes later is counted where it is recorded.
        tokio::time::sleep_until(until).await;
        self.waiting.close();
        self.fill(&mut spans);
        self.send_last(spans).await;
    }

    /// Adds what waits, as far as it fits into a request.
    fn fill(&mut self, spans: &mut Vec<Finished>) {
        while spans.len() < MOST
            && let Ok(span) = self.waiting.try_recv()
        {
            spans.push(span);
        }
    }

    /// Sends these and all that wait, as far as the collector takes them in time.
    async fn send_last(mut self, mut spans: Vec<Finished>) {
        let until = Instant::now() + self.last_within;
        while !spans.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                dropped(spans.len());
                spans.clear();
            } else {
                self.send(std::mem::take(&mut spans), left).await;
            }
            self.fill(&mut spans);
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};
    use std::time::SystemTime;

    use http_body_util::BodyExt as _;
    use hyper::Response;
    use hyper::body::{Bytes, Incoming};
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use prost::Message as _;
    use tokio::net::TcpListener;
    use tokio::sync::Semaphore;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::domain::TraceContext;
    use crate::trace::Kind;

    fn finished(span: u64) -> Finished {
        Finished {
            context: TraceContext { trace: 1, span, is_sampled: true },
            parent: None,
            name: "persist",
            kind: Kind::Internal,
            begun: SystemTime::UNIX_EPOCH,
            ended: SystemTime::UNIX_EPOCH,
            attributes: Vec::new(),
            failure: None,
        }
    }

    /// Takes traces, and counts the spans of each request once `answers` has a permit for it.
    fn collector(
        listener: TcpListener,
        counts: Arc<Mutex<Vec<usize>>>,
        [asked, answers]: [Arc<Semaphore>; 2],
    ) -> AbortOnDropHandle<()> {
        let take = move |request: Request<Incoming>| {
            let (counts, asked, answers) = (counts.clone(), asked.clone(), answers.clone());
            async move {
                let body = request.into_body().collect().await.expect("a body").to_bytes();
                let request = ExportTraceServiceRequest::decode(body).expect("as the protocol has it");
                let spans = request.resource_spans[0].scope_spans[0].spans.len();
                asked.add_permits(1);
                answers.acquire().await.expect("open").forget();
                counts.lock().expect("not poisoned").push(spans);
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }
        };
        AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(take.clone()));
                tokio::spawn(serving);
            }
        }))
    }

    struct Rig {
        exporter: Exporter,
        queue: mpsc::Sender<Finished>,
        counts: Arc<Mutex<Vec<usize>>>,
        asked: Arc<Semaphore>,
        answers: Arc<Semaphore>,
        _collector: AbortOnDropHandle<()>,
    }

    async fn rig(answers: usize) -> Rig {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let counts: Arc<Mutex<Vec<usize>>> = Arc::default();
        let [asked, answers] = [0, answers].map(|permits| Arc::new(Semaphore::new(permits)));
        let collector = collector(listener, counts.clone(), [asked.clone(), answers.clone()]);
        let (queue, waiting) = mpsc::channel(1_500);
        let exporter = Exporter {
            service: "test",
            collector: Collector { url: url.parse().expect("a URL"), headers: HeaderMap::new() },
            poster: Poster::new(Reach::EVERYWHERE),
            waiting,
            fails: false,
            last_within: Duration::from_secs(60),
        };
        Rig { exporter, queue, counts, asked, answers, _collector: collector }
    }

    /// Whether it waits for more spans to send with these, or for nothing.
    #[tokio::test]
    async fn a_process_that_stops_sends_all_spans_that_wait() {
        for ends_at_once in [true, false] {
            let Rig { exporter, queue, counts, _collector, .. } = rig(100).await;
            let stop = CancellationToken::new();
            if ends_at_once {
                stop.cancel();
            }
            let running = tokio::spawn(exporter.run(stop.clone()));
            queue.send(finished(1)).await.expect("room");
            while !ends_at_once && queue.capacity() < queue.max_capacity() {
                tokio::task::yield_now().await;
            }
            for nth in 2..=1_300 {
                queue.try_send(finished(nth)).expect("room");
            }
            stop.cancel();
            running.await.expect("no panic");
            assert_eq!(*counts.lock().expect("not poisoned"), [512, 512, 276], "{ends_at_once}");
        }
    }

    #[tokio::test]
    async fn a_process_that_stops_waits_for_the_spans_that_it_is_sending() {
        let Rig { exporter, queue, counts, asked, answers, _collector } = rig(0).await;
        for nth in 1..=512 {
            queue.try_send(finished(nth)).expect("room");
        }
        let stop = CancellationToken::new();
        let running = tokio::spawn(exporter.run(stop.clone()));
        asked.acquire().await.expect("open").forget();
        stop.cancel();
        // Long enough for the exporter to notice.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        answers.add_permits(1);
        running.await.expect("no panic");
        assert_eq!(*counts.lock().expect("not poisoned"), [512]);
    }
}
