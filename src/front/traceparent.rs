//! A request's place in its trace, as its header says.

use axum::http::HeaderMap;

use super::header_names::TRACEPARENT;
use crate::domain::TraceContext;

/// The `traceparent` of a request, as it is.
pub(super) fn traceparent(headers: &HeaderMap) -> Option<&str> {
    headers.get(&TRACEPARENT)?.to_str().ok()
}

/// The place of a request in its trace.
pub(super) fn trace_context(headers: &HeaderMap) -> Option<TraceContext> {
    traceparent(headers).and_then(TraceContext::parse)
}
