//! Traces: what happened in a sampled request, from the click to its row, and when.
//!
//! Every process records the spans of its part, and one task sends them to a collector, as OTLP over HTTP has it. The parts
//! belong together by a [`TraceContext`](crate::domain::TraceContext): a caller may send it, and a message carries it to
//! the worker. Without a collector nothing is recorded. Nothing ever waits for one: what it does not take is dropped and
//! counted.
//!
//! The recorder is one for the whole process, as that of logs and metrics is.

#![cfg_attr(not(feature = "traces"), allow(dead_code, unused_imports, reason = "nothing is sent"))]

#[cfg(feature = "traces")]
mod export;
mod finished;
mod headers;
#[cfg(feature = "traces")]
mod otlp;
mod recorder;
mod request;
mod span;

#[cfg(feature = "traces")]
pub use export::{Collector, Exporter};
pub use finished::Kind;
pub use headers::{BadHeaders, read_headers};
#[cfg(all(test, feature = "traces"))]
pub(crate) use recorder::record_what_callers_ask_for;
pub use recorder::{Sampling, is_on};
pub use request::RequestSpan;
pub use span::Span;

/// Whether this build can send traces.
pub const IS_BUILT_IN: bool = cfg!(feature = "traces");
