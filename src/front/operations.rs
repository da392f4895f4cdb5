//! The operations listener: liveness, readiness and metrics for monitoring, and the admin routes.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};

use super::admin;
use super::problem::{method_not_allowed, no_such_path};
use super::state::{Monitoring, Operations};

/// `described` are further routes, which no monitoring needs.
pub(super) fn router(operations: Operations, described: Router<Arc<Operations>>) -> Router {
    let monitoring = monitoring_routes(operations.monitoring.clone());
    let admin = admin::routes().merge(described).with_state(Arc::new(operations));
    let router = admin.merge(monitoring);
    router.fallback(no_such_path).method_not_allowed_fallback(method_not_allowed)
}

/// Without the admin API.
pub(super) fn monitoring_router(monitoring: Monitoring) -> Router {
    let router = monitoring_routes(monitoring);
    router.fallback(no_such_path).method_not_allowed_fallback(method_not_allowed)
}

fn monitoring_routes(monitoring: Monitoring) -> Router {
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(monitoring)
}

async fn ready(State(app): State<Monitoring>) -> Response {
    let readiness = app.readiness.borrow().clone();
    let status = if readiness.takes_orders() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

async fn metrics(State(app): State<Monitoring>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], (app.metrics)()).into_response()
}
