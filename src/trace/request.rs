//! The span of a request that a listener answers.

use std::time::{Duration, SystemTime};

use super::finished::Kind;
use super::recorder::{Recorder, recorder};
use super::span::{Span, new_id};
use crate::domain::TraceContext;

/// The span of a request, under way.
pub struct RequestSpan {
    recorder: &'static Recorder,
    caller: Option<TraceContext>,
    begun: SystemTime,
    is_patient: bool,
    /// The request's own place in its trace, if it is recorded with all its children.
    context: Option<TraceContext>,
}

impl RequestSpan {
    /// Begins the span of a request with this `traceparent`. If its caller is patient, it is never slow. `None` if this
    /// process records nothing.
    pub fn begin(traceparent: Option<&str>, is_patient: bool) -> Option<Self> {
        let recorder = recorder()?;
        let caller = traceparent.and_then(TraceContext::parse);
        let context = recorder.samples(caller).then(|| of_request(caller));
        Some(Self { recorder, caller, begun: SystemTime::now(), is_patient, context })
    }

    /// The parent of what is done for the request, if that is recorded.
    pub fn context(&self) -> Option<TraceContext> {
        self.context
    }

    /// Ends it with the status of the answer.
    pub fn end(self, method: &'static str, route: &'static str, (status, took): (u16, Duration)) {
        let is_slow = took >= self.recorder.sampling.slow && !self.is_patient;
        let is_notable = status >= 500 || is_slow;
        let is_noted = || is_notable && self.recorder.notes();
        let context = self.context.or_else(|| is_noted().then(|| of_request(self.caller)));
        let Some(context) = context else { return };
        let span = Span::new(context, self.caller.map(|caller| caller.span), route, Kind::Server)
            .since(self.begun)
            .with("http.request.method", method)
            .with("http.route", route)
            .with_number("http.response.status_code", status);
        if status >= 500 { span.failed(status).end() } else { span.end() }
    }
}

/// A place in the caller's trace, or in a new one.
fn of_request(caller: Option<TraceContext>) -> TraceContext {
    let trace = caller.map_or_else(|| rand::random::<u128>().max(1), |caller| caller.trace);
    TraceContext { trace, span: new_id(), is_sampled: true }
}
