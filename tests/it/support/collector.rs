//! A collector that takes traces.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// A span as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    pub service: String,
    pub trace: String,
    pub id: String,
    /// Empty if it has none.
    pub parent: String,
    pub name: String,
    /// In nanoseconds since 1970.
    pub begun: u64,
    pub ended: u64,
    pub attributes: Vec<(String, String)>,
    pub failed: bool,
}

#[derive(Clone, Default)]
struct Shared {
    spans: Arc<Mutex<Vec<Collected>>>,
    refuses: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
    keys: Arc<Mutex<Vec<Option<String>>>>,
}

pub struct Collector {
    at: SocketAddr,
    shared: Shared,
    _task: AbortOnDropHandle<()>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, shared) = (listener.local_addr().unwrap(), Shared::default());
        let routes = Router::new().route("/v1/traces", post(take)).with_state(shared.clone());
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { at, shared, _task: AbortOnDropHandle::new(task) }
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1/traces", self.at)
    }

    /// Has it answer 503, or not any more.
    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Has it answer nothing, or answer again what comes from now on.
    pub fn hang(&self, hangs: bool) {
        self.shared.hangs.store(hangs, Ordering::Relaxed);
    }

    pub fn spans(&self) -> Vec<Collected> {
        self.shared.spans.lock().unwrap().clone()
    }

    /// The `authorization` of each request.
    pub fn keys(&self) -> Vec<Option<String>> {
        self.shared.keys.lock().unwrap().clone()
    }

    /// The spans of a trace, in the order in which they began.
    pub fn spans_of(&self, trace: &str) -> Vec<Collected> {
        let mut spans = self.spans();
        spans.retain(|span| span.trace == trace);
        spans.sort_by_key(|span| (span.begun, span.ended));
        spans
    }
}

async fn take(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if shared.hangs.load(Ordering::Relaxed) {
        return std::future::pending().await;
    }
    if headers.get("content-type").is_none_or(|kind| kind != "application/x-protobuf") {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE;
    }
    let key = headers.get("authorization").map(|key| key.to_str().unwrap().to_owned());
    shared.keys.lock().unwrap().push(key);
    if shared.refuses.load(Ordering::Relaxed) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let request = ExportTraceServiceRequest::decode(body).expect("as the protocol has it");
    for resource in request.resource_spans {
        let service = attributes(&resource.resource.unwrap().attributes)
            .into_iter()
            .find_map(|(name, value)| (name == "service.name").then_some(value));
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            shared.spans.lock().unwrap().push(Collected {
                service: service.clone().unwrap_or_default(),
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                name: span.name,
                begun: span.start_time_unix_nano,
                ended: span.end_time_unix_nano,
                attributes: attributes(&span.attributes),
                failed: span.status.is_some_and(|status| status.code == 2),
            });
        }
    }
    StatusCode::OK
}

fn attributes(all: &[KeyValue]) -> Vec<(String, String)> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    all.iter().map(|attribute| (attribute.key.clone(), text(&attribute.value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
