//! Writes every refusal as `application/problem+json` (RFC 9457). Details are for people and may change;
//! [`codes`](super::codes) are the contract.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};

use super::codes::{Code, METHOD_NOT_ALLOWED, NOT_FOUND};
use super::header_names::{REQUEST_ID, TRACEPARENT};
use super::traceparent::trace_context;
use super::{known_problems, refusal_log};
use crate::domain::{Millis, OrderId};

/// Enough bytes for most problems.
const USUAL_BYTES: usize = 512;

#[derive(Debug)]
pub(super) struct Problem {
    code: Code,
    detail: String,
    /// Which of the causes of its code it has, where there are several.
    reason: &'static str,
    /// The error behind it, in the words of a server or a library: for the log and for operators, never for buyers.
    cause: Option<String>,
    extra: Map<String, Value>,
    retry_after: Option<u64>,
    headers: Vec<(&'static str, String)>,
    request_id: Option<String>,
    trace_id: Option<String>,
}

/// A response, or the problem to send instead. Boxed, because a problem is large and only refused requests should pay
/// for it.
pub(super) type Answered<T = Response> = Result<T, Box<Problem>>;

impl Problem {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            code,
            detail: detail.into(),
            reason: "",
            cause: None,
            extra: Map::new(),
            retry_after: None,
            headers: Vec::new(),
            request_id: None,
            trace_id: None,
        })
    }

    /// Names the reason, by which refusals of one code are counted and logged.
    pub(super) fn reason(mut self: Box<Self>, reason: &'static str) -> Box<Self> {
        self.reason = reason;
        self
    }

    /// Keeps the error behind the problem out of the answer, and in the log.
    pub(super) fn because(mut self: Box<Self>, cause: impl ToString) -> Box<Self> {
        self.cause = Some(cause.to_string());
        self
    }

    /// Adds the cause to the detail, for operators.
    pub(super) fn with_its_cause(mut self: Box<Self>) -> Box<Self> {
        if let Some(cause) = &self.cause {
            self.detail = format!("{}: {cause}", self.detail);
        }
        self
    }

    /// Adds a member to the problem's JSON.
    pub(super) fn with(mut self: Box<Self>, name: &str, value: impl Into<Value>) -> Box<Self> {
        self.extra.insert(name.to_owned(), value.into());
        self
    }

    /// Names the order that the problem is about.
    pub(super) fn of_order(self: Box<Self>, id: OrderId) -> Box<Self> {
        self.with("order_id", id.to_string())
    }

    /// Sets `Retry-After`, in seconds.
    pub(super) fn retry_after(mut self: Box<Self>, seconds: u64) -> Box<Self> {
        self.retry_after = Some(seconds);
        self
    }

    /// Sets `Retry-After` to the seconds from `now` until `at`.
    pub(super) fn retry_at(self: Box<Self>, now: Millis, at: Millis) -> Box<Self> {
        self.retry_after(now.seconds_until(at))
    }

    pub(super) fn header(mut self: Box<Self>, name: &'static str, value: String) -> Box<Self> {
        self.headers.push((name, value));
        self
    }

    /// Carries the client's `X-Request-Id` and the trace, so that the logs of both sides can be matched.
    pub(super) fn of_request(mut self: Box<Self>, headers: &HeaderMap) -> Box<Self> {
        self.request_id = request_id(headers);
        self.trace_id = trace_context(headers).map(|context| context.trace_id());
        self
    }
}

/// The response, or its problem with the request's id and trace.
/// No cache may keep the answer unless it says so itself: it is about one caller, and soon out of date.
pub(super) fn respond(answered: Answered, headers: &HeaderMap) -> Response {
    let mut response = answered.unwrap_or_else(|problem| problem.of_request(headers).into_response());
    let caching = response.headers_mut().entry(header::CACHE_CONTROL);
    caching.or_insert(HeaderValue::from_static("no-store"));
    response
}

/// As [`respond`], for operators, who get the cause of a problem as well.
pub(super) fn respond_to_operator(answered: Answered, headers: &HeaderMap) -> Response {
    respond(answered.map_err(Problem::with_its_cause), headers)
}

pub(super) async fn no_such_path(headers: HeaderMap) -> Response {
    Problem::new(NOT_FOUND, "no such path").of_request(&headers).into_response()
}

pub(super) async fn method_not_allowed(headers: HeaderMap) -> Response {
    let problem = Problem::new(METHOD_NOT_ALLOWED, "this path does not take this method");
    problem.of_request(&headers).into_response()
}

/// The headers that [`Problem::of_request`] reads, for when the request is gone.
pub(super) fn identifying(headers: &HeaderMap) -> HeaderMap {
    let mut identifying = HeaderMap::new();
    for name in [&REQUEST_ID, &TRACEPARENT] {
        if let Some(value) = headers.get(name) {
            identifying.insert(name, value.clone());
        }
    }
    identifying
}

/// The `X-Request-Id` of a request, if it is safe to send back.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(&REQUEST_ID)?.to_str().ok()?;
    let usable = (1..=64).contains(&id.len()) && id.bytes().all(|c| c.is_ascii_graphic());
    usable.then(|| id.to_owned())
}

/// Why a token or a signature was refused, beside the response.
#[derive(Clone)]
pub(super) struct RefusedFor(&'static str);

impl RefusedFor {
    /// Whether something had to be verified to find out. What is missing or has the wrong form is cheap to refuse.
    pub(super) fn took_verifying(&self) -> bool {
        const CHEAP: [&str; 7] =
            ["no_token", "malformed", "algorithm", "no_header", "id", "time", "too_many_signatures"];
        !CHEAP.contains(&self.0)
    }
}

/// The members of a body that other problems of the same code do not share.
#[derive(Serialize)]
struct Own<'a> {
    detail: &'a str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
    #[serde(flatten, skip_serializing_if = "Map::is_empty")]
    extra: &'a Map<String, Value>,
}

impl IntoResponse for Box<Problem> {
    fn into_response(self) -> Response {
        let Code { status, name: code, .. } = self.code;
        let request_id = self
            .request_id
            .unwrap_or_else(|| uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string());
        if status >= 500 || [401, 403, 429].contains(&status) {
            let cause = self.cause.as_deref().unwrap_or_default();
            let ids = (&*request_id, self.trace_id.as_deref().unwrap_or_default());
            refusal_log::write((status, code), self.reason, cause, ids);
        }
        let own = Own {
            detail: &self.detail,
            request_id: &request_id,
            trace_id: self.trace_id.as_deref(),
            extra: &self.extra,
        };
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        known_problems::count_and_write(&self.code, self.reason, &own, &mut bytes);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, bytes).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(id) = HeaderValue::from_str(&request_id) {
            headers.insert(&REQUEST_ID, id);
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        if status == StatusCode::UNAUTHORIZED {
            response.extensions_mut().insert(RefusedFor(self.reason));
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
