//! Names of headers that are looked for in every request. A look by a text parses it each time.

use axum::http::HeaderName;

pub(super) static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(super) static PREFER: HeaderName = HeaderName::from_static("prefer");
pub(super) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(super) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
