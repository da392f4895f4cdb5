//! The operations listener: is it alive, is it ready, what has it counted; and the admin routes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use super::buyers::{method_not_allowed, not_found};
use super::{Operations, acts, admin, dead_letters, orders, payments};

/// What the last look at the servers found.
#[derive(Debug, Clone, Serialize)]
pub struct Readiness {
    /// `starting`, `ready`, `degraded` (orders are taken, but something is away) or `unavailable`.
    pub status: &'static str,
    pub dependencies: BTreeMap<&'static str, Dependency>,
}

/// Before the first look.
impl Default for Readiness {
    fn default() -> Self {
        Self { status: "starting", dependencies: BTreeMap::new() }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Dependency {
    pub up: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

pub(super) fn router(operations: Arc<Operations>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(admin::routes())
        .merge(dead_letters::routes())
        .merge(orders::routes())
        .merge(acts::routes())
        .merge(payments::routes())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(operations)
}

async fn ready(State(app): State<Arc<Operations>>) -> Response {
    let readiness = app.readiness.borrow().clone();
    let takes_orders = matches!(readiness.status, "ready" | "degraded");
    let status = if takes_orders { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

async fn metrics(State(app): State<Arc<Operations>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], (app.metrics)()).into_response()
}
