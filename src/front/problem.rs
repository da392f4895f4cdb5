//! Every refusal, as `application/problem+json` (RFC 9457). Codes are the contract; details are
//! for people and may change.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::domain::Millis;

/// A code of the contract: (status, code, title, whether trying again may help).
type Kind = (u16, &'static str, &'static str, bool);

pub(super) const UNAUTHENTICATED: Kind = (401, "unauthenticated", "A valid bearer token is needed", false);
pub(super) const FORBIDDEN: Kind = (403, "forbidden", "Your role does not allow this", false);
pub(super) const NOT_FOUND: Kind = (404, "not_found", "There is nothing here", false);
pub(super) const METHOD_NOT_ALLOWED: Kind = (405, "method_not_allowed", "Not with this method", false);
pub(super) const SALE_NOT_FOUND: Kind = (404, "sale_not_found", "There is no such sale", false);
pub(super) const ORDER_NOT_FOUND: Kind = (404, "order_not_found", "There is no such order", false);
pub(super) const LETTER_NOT_FOUND: Kind = (404, "letter_not_found", "There is no such dead letter", false);
pub(super) const LETTER_UNREADABLE: Kind =
    (422, "letter_unreadable", "This build cannot read the dead letter", false);
pub(super) const MALFORMED: Kind = (400, "malformed", "The request cannot be understood", false);
pub(super) const KEY_REQUIRED: Kind =
    (400, "idempotency_key_required", "An Idempotency-Key header is needed", false);
pub(super) const REQUEST_TIMEOUT: Kind = (408, "request_timeout", "The request came too slowly", true);
pub(super) const INVALID_QUANTITY: Kind = (422, "invalid_quantity", "This quantity cannot be ordered", false);
pub(super) const UNKNOWN_SKU: Kind = (422, "unknown_sku", "The sale has no such item", false);
pub(super) const KEY_REUSED: Kind =
    (422, "idempotency_key_reused", "This Idempotency-Key belongs to another request", false);
pub(super) const BODY_TOO_LARGE: Kind = (413, "body_too_large", "The body is too large", false);
pub(super) const SALE_NOT_OPEN: Kind = (409, "sale_not_open", "The sale has not opened yet", true);
pub(super) const SALE_CLOSED: Kind = (410, "sale_closed", "The sale is over", false);
pub(super) const SOLD_OUT: Kind = (409, "sold_out", "Sold out", false);
pub(super) const ALREADY_ORDERED: Kind = (409, "already_ordered", "You have an order already", false);
pub(super) const PURCHASE_LIMIT: Kind =
    (409, "purchase_limit", "You have reached the limit per buyer", false);
pub(super) const ORDER_FAILED: Kind = (409, "order_failed", "The order could not be confirmed", false);
pub(super) const RATE_LIMITED: Kind = (429, "rate_limited", "Too many attempts", true);
pub(super) const SALE_PAUSED: Kind = (503, "sale_paused", "The sale is paused", true);
pub(super) const OVERLOADED: Kind = (503, "overloaded", "Too many orders are waiting", true);
pub(super) const GATE_UNAVAILABLE: Kind =
    (503, "gate_unavailable", "Orders cannot be taken now; nothing was taken", true);
pub(super) const STATUS_UNAVAILABLE: Kind =
    (503, "status_unavailable", "The status cannot be read now", true);
pub(super) const OUTCOME_UNKNOWN: Kind =
    (504, "outcome_unknown", "Whether the order was taken is not known yet", true);
pub(super) const SALE_EXISTS: Kind = (409, "sale_exists", "There is a sale with this id already", false);
pub(super) const INVALID_SALE: Kind = (422, "invalid_sale", "This sale could not be sold", false);
pub(super) const INVALID_TRANSITION: Kind =
    (409, "invalid_transition", "The state does not allow this", false);
pub(super) const ACT_UNFINISHED: Kind = (503, "act_unfinished", "A server did not answer; do it again", true);
pub(super) const BAD_SIGNATURE: Kind = (401, "bad_signature", "The signature is not valid", false);
pub(super) const EVENT_REUSED: Kind =
    (422, "event_reused", "This event's id belongs to another event", false);
pub(super) const PAYMENT_MISMATCH: Kind =
    (422, "payment_mismatch", "The payment does not fit its order", false);
pub(super) const ACT_REFUSED: Kind = (409, "act_refused", "Nothing was changed", false);
pub(super) const INTERNAL: Kind = (500, "internal", "A fault of Doorbuster's", true);

/// Bytes that most problems fit in.
const USUAL: usize = 512;

#[derive(Debug)]
pub(super) struct Problem {
    kind: Kind,
    detail: String,
    extra: Map<String, Value>,
    retry_after: Option<u64>,
    headers: Vec<(&'static str, String)>,
    request_id: Option<String>,
}

/// Built on the error path only, so its size does not matter to the buyer who gets through.
pub(super) type Answered<T = Response> = Result<T, Box<Problem>>;

impl Problem {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            kind,
            detail: detail.into(),
            extra: Map::new(),
            retry_after: None,
            headers: Vec::new(),
            request_id: None,
        })
    }

    pub(super) fn with(mut self: Box<Self>, name: &str, value: impl Into<Value>) -> Box<Self> {
        self.extra.insert(name.to_owned(), value.into());
        self
    }

    pub(super) fn retry_after(mut self: Box<Self>, seconds: u64) -> Box<Self> {
        self.retry_after = Some(seconds);
        self
    }

    pub(super) fn header(mut self: Box<Self>, name: &'static str, value: String) -> Box<Self> {
        self.headers.push((name, value));
        self
    }

    pub(super) fn retry_at(self: Box<Self>, now: Millis, at: Millis) -> Box<Self> {
        self.retry_after(now.seconds_until(at))
    }

    /// Names the request as its sender did, so that both logs can be laid side by side.
    pub(super) fn of_request(self: Box<Self>, headers: &HeaderMap) -> Box<Self> {
        self.named(sent_id(headers))
    }

    pub(super) fn named(mut self: Box<Self>, request_id: Option<String>) -> Box<Self> {
        self.request_id = request_id;
        self
    }
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: std::fmt::Arguments<'a>,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    retryable: bool,
    request_id: &'a str,
    #[serde(flatten, skip_serializing_if = "Map::is_empty")]
    extra: &'a Map<String, Value>,
}

/// The `X-Request-Id` that came with the request, if it can be shown again.
pub(super) fn sent_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("x-request-id")?.to_str().ok()?;
    let usable = (1..=64).contains(&id.len()) && id.bytes().all(|c| c.is_ascii_graphic());
    usable.then(|| id.to_owned())
}

impl IntoResponse for Box<Problem> {
    fn into_response(self) -> Response {
        let (status, code, title, retryable) = self.kind;
        metrics::counter!("front_problems_total", "code" => code).increment(1);
        let request_id = self
            .request_id
            .unwrap_or_else(|| uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string());
        if status >= 500 {
            tracing::debug!(code, request_id, detail = self.detail, "request failed");
        }
        let body = Body {
            r#type: format_args!("urn:doorbuster:problem:{code}"),
            title,
            status,
            detail: &self.detail,
            code,
            retryable,
            request_id: &request_id,
            extra: &self.extra,
        };
        // Texts and numbers cannot fail to be written.
        let mut bytes = Vec::with_capacity(USUAL);
        let _ = serde_json::to_writer(&mut bytes, &body);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let json = HeaderValue::from_static("application/problem+json");
        let mut response = (status, bytes).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, json);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(id) = HeaderValue::from_str(&request_id) {
            headers.insert("x-request-id", id);
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
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
