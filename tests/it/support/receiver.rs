//! A shop's receiver of webhooks.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use doorbuster::webhook::{Secret, Signed};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// How it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Takes,
    /// Takes everything, each after this long.
    Slowly(Duration),
    Answers(StatusCode),
    /// Takes everything, and says that it does not: as if each answer were lost.
    InVain,
    /// Takes everything but events of this type.
    Refuses(&'static str),
    /// To another path of this receiver.
    Redirects,
    /// With 200, and a body that never ends.
    TalksOn,
    Never,
}

/// A delivery that came.
#[derive(Debug, Clone)]
pub struct Delivered {
    pub path: String,
    pub id: String,
    pub timestamp: i64,
    pub signatures: Vec<String>,
    pub body: String,
    pub json: Value,
}

impl Delivered {
    pub fn kind(&self) -> &str {
        self.json["type"].as_str().expect("a type")
    }

    pub fn is_signed_with(&self, secret: &str) -> bool {
        let signed = Signed { id: &self.id, timestamp: self.timestamp, body: &self.body };
        self.signatures.contains(&Secret::parse(secret).unwrap().sign(signed))
    }
}

#[derive(Clone)]
struct Shared {
    manner: Arc<Mutex<Manner>>,
    delivered: Arc<Mutex<Vec<Delivered>>>,
    refused: Arc<AtomicUsize>,
}

/// It remembers what was delivered while it was killed and started again.
pub struct Receiver {
    pub at: SocketAddr,
    shared: Shared,
    task: Option<AbortOnDropHandle<()>>,
}

impl Receiver {
    pub async fn start() -> Self {
        let shared = Shared {
            manner: Arc::new(Mutex::new(Manner::Takes)),
            delivered: Arc::default(),
            refused: Arc::default(),
        };
        let mut receiver = Self { at: "127.0.0.1:0".parse().unwrap(), shared, task: None };
        receiver.start_again().await;
        receiver
    }

    pub fn url(&self) -> String {
        format!("http://{}/hooks", self.at)
    }

    /// At the same address.
    pub async fn start_again(&mut self) {
        let listener = loop {
            match TcpListener::bind(self.at).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        self.at = listener.local_addr().unwrap();
        let routes = Router::new().fallback(take).with_state(self.shared.clone());
        self.task = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            axum::serve(listener, routes).await.unwrap();
        })));
    }

    /// Nobody listens any more.
    pub async fn kill(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
        // Connections that are open already get no answer either.
        self.behave(Manner::Answers(StatusCode::SERVICE_UNAVAILABLE));
    }

    pub fn behave(&self, manner: Manner) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    pub fn delivered(&self) -> Vec<Delivered> {
        self.shared.delivered.lock().unwrap().clone()
    }

    /// How often it refused an event.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// The kinds of what came of this order, each the first time, in the order in which they came.
    pub fn kinds_of(&self, order: &str) -> Vec<String> {
        let mut kinds: Vec<String> = Vec::new();
        for delivered in self.delivered() {
            if delivered.json["data"]["order_id"] == order
                && !kinds.iter().any(|kind| kind == delivered.kind())
            {
                kinds.push(delivered.kind().to_owned());
            }
        }
        kinds
    }
}

async fn take(State(shared): State<Shared>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let manner = *shared.manner.lock().unwrap();
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = String::from_utf8(body.to_vec()).unwrap();
    let delivered = Delivered {
        path: uri.path().to_owned(),
        id: header("webhook-id").to_owned(),
        timestamp: header("webhook-timestamp").parse().unwrap_or(0),
        signatures: header("webhook-signature").split(' ').map(str::to_owned).collect(),
        json: serde_json::from_str(&body).unwrap_or_default(),
        body,
    };
    match manner {
        Manner::Refuses(kind) if delivered.kind() == kind => {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
        Manner::Takes | Manner::Refuses(_) => {
            shared.delivered.lock().unwrap().push(delivered);
            StatusCode::NO_CONTENT.into_response()
        }
        Manner::Slowly(after) => {
            tokio::time::sleep(after).await;
            shared.delivered.lock().unwrap().push(delivered);
            StatusCode::NO_CONTENT.into_response()
        }
        Manner::Answers(status) => status.into_response(),
        Manner::InVain => {
            shared.delivered.lock().unwrap().push(delivered);
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
        Manner::Redirects => {
            // A client that follows it comes here again.
            shared.delivered.lock().unwrap().push(delivered);
            (StatusCode::TEMPORARY_REDIRECT, [("location", "/inside")]).into_response()
        }
        Manner::TalksOn => {
            shared.delivered.lock().unwrap().push(delivered);
            let forever =
                futures_util::stream::repeat_with(|| Ok::<_, std::convert::Infallible>(vec![b'x'; 100_000]));
            Body::from_stream(forever).into_response()
        }
        Manner::Never => std::future::pending().await,
    }
}
