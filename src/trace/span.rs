//! Spans.

use std::fmt::Display;
use std::time::SystemTime;

use super::finished::{Finished, Kind, Value};
use super::recorder::recorder;
use crate::domain::TraceContext;

/// A span under way. It is recorded when it ends, and not if it is dropped.
#[derive(Debug)]
#[must_use = "a span is recorded when it ends"]
pub struct Span(Finished);

impl Span {
    /// Begins a span in the trace of `parent`. `None` if that is not recorded, or nothing is.
    pub fn child(parent: Option<TraceContext>, name: &'static str, kind: Kind) -> Option<Self> {
        let parent = parent.filter(|parent| parent.is_sampled && recorder().is_some())?;
        let context = TraceContext { span: new_id(), ..parent };
        Some(Self::new(context, Some(parent.span), name, kind))
    }

    pub(super) fn new(context: TraceContext, parent: Option<u64>, name: &'static str, kind: Kind) -> Self {
        let (begun, attributes) = (SystemTime::now(), Vec::new());
        Self(Finished { context, parent, name, kind, begun, ended: begun, attributes, failure: None })
    }

    /// For its children.
    pub fn context(&self) -> TraceContext {
        self.0.context
    }

    /// The same, begun at another time.
    pub fn since(mut self, begun: SystemTime) -> Self {
        self.0.begun = begun;
        self
    }

    /// The same with an attribute. Nothing that names a buyer belongs here.
    pub fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.0.attributes.push((name, Value::Text(value.to_string())));
        self
    }

    /// The same with a number as an attribute.
    pub fn with_number(mut self, name: &'static str, value: impl TryInto<i64>) -> Self {
        let value = value.try_into().unwrap_or(i64::MAX);
        self.0.attributes.push((name, Value::Number(value)));
        self
    }

    /// The same, failed.
    pub fn failed(mut self, why: impl Display) -> Self {
        self.0.failure = Some(why.to_string());
        self
    }

    /// Ends it now.
    pub fn end(self) {
        self.end_at(SystemTime::now());
    }

    /// Ends it at this time.
    pub fn end_at(mut self, ended: SystemTime) {
        self.0.ended = ended;
        if let Some(recorder) = recorder() {
            recorder.take(self.0);
        }
    }
}

/// A span's id. Zero is none.
pub(super) fn new_id() -> u64 {
    rand::random::<u64>().max(1)
}
