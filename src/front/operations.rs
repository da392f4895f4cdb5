//! The operations listener: liveness, readiness and metrics for monitoring, and the admin routes.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};

use super::admin;
use super::problem::{method_not_allowed, no_such_path};
use super::state::Operations;

pub(super) fn router(operations: Arc<Operations>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(admin::routes())
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(operations)
}

async fn ready(State(app): State<Arc<Operations>>) -> Response {
    let readiness = app.readiness.borrow().clone();
    let status = if readiness.takes_orders() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

async fn metrics(State(app): State<Arc<Operations>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], (app.metrics)()).into_response()
}
