//! A shop that takes webhooks. Of one order in sixteen it refuses each of them once.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::rehearsal::judge::{Webhook, now_ms};

const PATH: &str = "/webhooks";

/// The body of a webhook.
#[derive(Deserialize)]
struct Body {
    data: Data,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Data {
    Order { order_id: Uuid, sale_id: String, status: String, version: i64 },
    Sale { sale_id: String, status: String },
}

#[derive(Default)]
struct Taken {
    /// In the order in which they came, each with its sale.
    webhooks: Vec<(String, Webhook)>,
    /// What happened to sales, in the order in which it came first: the sale, the id, and what it was.
    events: Vec<(String, String, String)>,
    refused: HashSet<(Uuid, i64)>,
}

/// It ends when it is dropped.
pub(super) struct Shop {
    address: SocketAddr,
    taken: Arc<Mutex<Taken>>,
    _task: AbortOnDropHandle<()>,
}

impl Shop {
    pub(super) async fn open() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, taken) = (listener.local_addr()?, Arc::<Mutex<Taken>>::default());
        let routes = Router::new().route(PATH, post(take)).with_state(taken.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::warn!(%error, "the shop takes no more webhooks");
            }
        });
        Ok(Self { address, taken, _task: AbortOnDropHandle::new(task) })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// What it has taken of a sale, in the order in which it came.
    pub(super) fn taken_of(&self, sale: &str) -> Vec<Webhook> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.webhooks.iter().filter(|(of, _)| of == sale).map(|(_, webhook)| webhook.clone()).collect()
    }

    /// What it has taken about a sale itself, in the order in which it came first.
    pub(super) fn events_of(&self, sale: &str) -> Vec<String> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.events.iter().filter(|(of, ..)| of == sale).map(|(.., event)| event.clone()).collect()
    }
}

async fn take(State(taken): State<Arc<Mutex<Taken>>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let (order_id, sale_id, status, version) = match serde_json::from_slice(&body) {
        Ok(Body { data: Data::Order { order_id, sale_id, status, version } }) => {
            (order_id, sale_id, status, version)
        }
        Ok(Body { data: Data::Sale { sale_id, status } }) => {
            let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
            let id = headers.get("webhook-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
            // A front that was frozen may repeat what is older than what came since.
            if !taken.events.iter().any(|(of, before, _)| *of == sale_id && before == id) {
                taken.events.push((sale_id, id.to_owned(), status));
            }
            return StatusCode::NO_CONTENT;
        }
        Err(_) => return StatusCode::BAD_REQUEST,
    };
    let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
    let is_difficult = order_id.as_bytes()[15].is_multiple_of(16);
    if is_difficult && taken.refused.insert((order_id, version)) {
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    let webhook = Webhook { at_ms: now_ms(), order: order_id, version, state: status };
    taken.webhooks.push((sale_id, webhook));
    StatusCode::NO_CONTENT
}
