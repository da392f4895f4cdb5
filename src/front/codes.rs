//! The error codes of the contract, each with its HTTP status. A code never changes its meaning; titles are for
//! people and may change.

/// One code of the contract.
#[derive(Debug, Clone, Copy)]
pub(super) struct Code {
    pub(super) status: u16,
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Whether the same request may succeed later.
    pub(super) retryable: bool,
}

/// A refusal that the same request would get again.
const fn refusal(status: u16, name: &'static str, title: &'static str) -> Code {
    Code { status, name, title, retryable: false }
}

/// A failure that a later attempt may not meet.
const fn retryable(status: u16, name: &'static str, title: &'static str) -> Code {
    Code { status, name, title, retryable: true }
}

// Any request.
pub(super) const MALFORMED: Code = refusal(400, "malformed", "The request cannot be understood");
pub(super) const UNAUTHENTICATED: Code = refusal(401, "unauthenticated", "A valid bearer token is needed");
pub(super) const KEYS_UNAVAILABLE: Code = retryable(503, "keys_unavailable", "Tokens cannot be verified now");
pub(super) const FORBIDDEN: Code = refusal(403, "forbidden", "Your role does not allow this");
pub(super) const NOT_FOUND: Code = refusal(404, "not_found", "There is nothing at this path");
pub(super) const METHOD_NOT_ALLOWED: Code =
    refusal(405, "method_not_allowed", "This path does not take this method");
pub(super) const REQUEST_TIMEOUT: Code = retryable(408, "request_timeout", "The request arrived too slowly");
pub(super) const BODY_TOO_LARGE: Code = refusal(413, "body_too_large", "The body is too large");
pub(super) const RATE_LIMITED: Code = retryable(429, "rate_limited", "Too many attempts");
pub(super) const INTERNAL: Code = retryable(500, "internal", "Doorbuster has a fault");

// Buyers: the sale.
pub(super) const SALE_NOT_FOUND: Code = refusal(404, "sale_not_found", "There is no such sale");
pub(super) const SALE_NOT_OPEN: Code = retryable(409, "sale_not_open", "The sale has not opened yet");
pub(super) const SALE_CLOSED: Code = refusal(410, "sale_closed", "The sale is over");
pub(super) const SALE_PAUSED: Code = retryable(503, "sale_paused", "The sale is paused");
pub(super) const TOO_MANY_STREAMS: Code =
    retryable(503, "too_many_streams", "There is no room for another stream");

// Buyers: placing an order.
pub(super) const SOLD_OUT: Code = refusal(409, "sold_out", "Sold out");
pub(super) const ALREADY_ORDERED: Code = refusal(409, "already_ordered", "You already have an order");
pub(super) const PURCHASE_LIMIT: Code =
    refusal(409, "purchase_limit", "You have reached the limit per buyer");
pub(super) const ORDER_FAILED: Code = refusal(409, "order_failed", "The order could not be confirmed");
pub(super) const KEY_REQUIRED: Code =
    refusal(400, "idempotency_key_required", "An Idempotency-Key header is needed");
pub(super) const KEY_REUSED: Code =
    refusal(422, "idempotency_key_reused", "This Idempotency-Key belongs to another request");
pub(super) const INVALID_QUANTITY: Code = refusal(422, "invalid_quantity", "This quantity cannot be ordered");
pub(super) const UNKNOWN_SKU: Code = refusal(422, "unknown_sku", "The sale has no such item");
pub(super) const OVERLOADED: Code = retryable(503, "overloaded", "Too many orders are waiting");
pub(super) const GATE_UNAVAILABLE: Code =
    retryable(503, "gate_unavailable", "Orders are unavailable; this attempt took nothing");
pub(super) const READ_ONLY: Code = retryable(503, "read_only", "Orders cannot be changed now");
pub(super) const OUTCOME_UNKNOWN: Code =
    retryable(504, "outcome_unknown", "It is not known yet whether the order was taken");

// Buyers and operators: an order.
pub(super) const ORDER_NOT_FOUND: Code = refusal(404, "order_not_found", "There is no such order");
pub(super) const STATUS_UNAVAILABLE: Code =
    retryable(503, "status_unavailable", "The status cannot be read now");

// Operators.
pub(super) const SALE_EXISTS: Code = refusal(409, "sale_exists", "A sale with this id already exists");
pub(super) const INVALID_SALE: Code = refusal(422, "invalid_sale", "The sale is not valid");
pub(super) const INVALID_TRANSITION: Code =
    refusal(409, "invalid_transition", "The current state does not allow this");
pub(super) const INVALID_SETTING: Code = refusal(422, "invalid_setting", "The setting is not valid");
pub(super) const INVALID_ENDPOINT: Code = refusal(422, "invalid_endpoint", "The endpoint is not valid");
pub(super) const ENDPOINT_EXISTS: Code =
    refusal(409, "endpoint_exists", "An endpoint with this id already exists");
pub(super) const ENDPOINT_NOT_FOUND: Code = refusal(404, "endpoint_not_found", "There is no such endpoint");
pub(super) const ACT_REFUSED: Code = refusal(409, "act_refused", "The act was refused; nothing changed");
pub(super) const ACT_UNFINISHED: Code =
    retryable(503, "act_unfinished", "A server did not answer; send the act again");
pub(super) const LETTER_NOT_FOUND: Code = refusal(404, "letter_not_found", "There is no such dead letter");
pub(super) const LETTER_UNREADABLE: Code =
    refusal(422, "letter_unreadable", "This build cannot read the dead letter");

// Payment providers.
pub(super) const BAD_SIGNATURE: Code = refusal(401, "bad_signature", "The signature is not valid");
pub(super) const EVENT_REUSED: Code = refusal(422, "event_reused", "This event id belongs to another event");
pub(super) const PAYMENT_MISMATCH: Code =
    refusal(422, "payment_mismatch", "The payment does not fit its order");
