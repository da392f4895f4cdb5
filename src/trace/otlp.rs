//! Spans as the protocol has them.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message as _;

use super::finished::{Finished, Kind, Value};

/// The body of a request with these spans of a service.
pub(super) fn encode(service: &str, spans: Vec<Finished>) -> Vec<u8> {
    let resource = Resource {
        attributes: vec![
            attribute("service.name", Any::StringValue(service.to_owned())),
            attribute("service.version", Any::StringValue(env!("CARGO_PKG_VERSION").to_owned())),
            attribute("process.pid", Any::IntValue(std::process::id().into())),
        ],
        ..Resource::default()
    };
    let scope = InstrumentationScope { name: "doorbuster".to_owned(), ..InstrumentationScope::default() };
    let scope_spans = ScopeSpans {
        scope: Some(scope),
        spans: spans.into_iter().map(span).collect(),
        ..ScopeSpans::default()
    };
    let spans = ResourceSpans {
        resource: Some(resource),
        scope_spans: vec![scope_spans],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest { resource_spans: vec![spans] }.encode_to_vec()
}

fn span(span: Finished) -> Span {
    let kind = match span.kind {
        Kind::Internal => SpanKind::Internal,
        Kind::Server => SpanKind::Server,
        Kind::Client => SpanKind::Client,
        Kind::Producer => SpanKind::Producer,
        Kind::Consumer => SpanKind::Consumer,
    };
    let attributes = span.attributes.into_iter().map(|(name, value)| match value {
        Value::Text(text) => attribute(name, Any::StringValue(text)),
        Value::Number(number) => attribute(name, Any::IntValue(number)),
    });
    let status = span.failure.map(|message| Status { message, code: StatusCode::Error.into() });
    Span {
        trace_id: span.context.trace.to_be_bytes().to_vec(),
        span_id: span.context.span.to_be_bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
        flags: u32::from(span.context.is_sampled),
        name: span.name.to_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.begun),
        // A clock that was set back must not make it end before it began.
        end_time_unix_nano: nanos(span.ended.max(span.begun)),
        attributes: attributes.collect(),
        status,
        ..Span::default()
    }
}

fn attribute(name: &str, value: Any) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
