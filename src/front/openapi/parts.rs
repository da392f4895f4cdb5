//! The parameters and the response headers of the operations, each described once.

use serde_json::{Value, json};

use super::operation::{SchemaOf, schema_of};
use crate::domain::{IdempotencyKey, OrderId, SaleId};
use crate::store::PaymentState;

/// A parameter of a request.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    /// `path`, `query` or `header`.
    pub(super) place: &'static str,
    pub(super) required: bool,
    pub(super) description: &'static str,
    pub(super) schema: SchemaOf,
    pub(super) example: fn() -> Value,
}

const fn optional(
    place: &'static str,
    name: &'static str,
    schema: SchemaOf,
    description: &'static str,
    example: fn() -> Value,
) -> Parameter {
    Parameter { name, place, required: false, description, schema, example }
}

const fn required(parameter: Parameter) -> Parameter {
    Parameter { required: true, ..parameter }
}

/// The order of the examples.
pub(super) const AN_ORDER: &str = "0190c7a1-5d3f-7c5e-8f6d-2b9a4e1c7d10";

/// Every parameter, by name.
pub(super) const PARAMETERS: &[Parameter] = &[
    required(optional("path", "sale", schema_of::<SaleId>, "The sale.", || json!("shoes"))),
    required(optional("path", "id", schema_of::<OrderId>, "The order.", || json!(AN_ORDER))),
    required(optional("path", "letter", schema_of::<String>, "The dead letter.", || json!(AN_ORDER))),
    required(optional(
        "path",
        "provider",
        schema_of::<String>,
        "The provider's name in the configuration.",
        || json!("acme"),
    )),
    optional(
        "header",
        "Idempotency-Key",
        schema_of::<IdempotencyKey>,
        "Names this click or act: the same key again returns the same result and does nothing twice. Required \
         where a buyer may have several units, and for a restock.",
        || json!("click-1"),
    ),
    optional(
        "header",
        "Prefer",
        schema_of::<String>,
        "`wait=N` waits up to N seconds (at most 10) for the order's row.",
        || json!("wait=2"),
    ),
    optional(
        "header",
        "Last-Event-ID",
        schema_of::<String>,
        "The id of the event that the client had last: the stream begins with the next change.",
        || json!("q6JtqWm2kX0xvYf3"),
    ),
    optional(
        "query",
        "wait",
        |_| schemars::json_schema!({"type": "integer", "minimum": 0}),
        "Seconds to wait until the order is no longer `accepted`; at most 10.",
        || json!(5),
    ),
    optional("query", "after", schema_of::<OrderId>, "The last order of the page before.", || {
        json!(AN_ORDER)
    }),
    optional(
        "query",
        "limit",
        |_| schemars::json_schema!({"type": "integer", "minimum": 1, "maximum": 100}),
        "Orders in a page; 100 if left out.",
        || json!(20),
    ),
    optional(
        "query",
        "state",
        schema_of::<PaymentState>,
        "The state of the events; `late` if left out.",
        || json!("late"),
    ),
    required(optional(
        "header",
        "webhook-id",
        |_| schemars::json_schema!({"type": "string", "pattern": "^[!-~]{1,100}$"}),
        "The provider's id of the event.",
        || json!("evt_1"),
    )),
    required(optional("header", "webhook-timestamp", schema_of::<String>, "Unix seconds.", || {
        json!("1764180000")
    })),
    required(optional(
        "header",
        "webhook-signature",
        schema_of::<String>,
        "`v1,` and the base64 of the HMAC-SHA256 of `{webhook-id}.{webhook-timestamp}.{body}`; up to eight, with \
         spaces between.",
        || json!("v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="),
    )),
];

/// The response headers besides those of HTTP itself: name, description, and schema.
pub(super) const HEADERS: &[(&str, &str, SchemaOf)] = &[
    ("Location", "The path of the order.", schema_of::<String>),
    (
        "Idempotent-Replayed",
        "`true`, where the order was placed by an earlier request.",
        |_| schemars::json_schema!({"type": "string", "const": "true"}),
    ),
    (
        "Retry-After",
        "Seconds until it makes sense to ask again, where that is known.",
        |_| schemars::json_schema!({"type": "integer", "minimum": 1}),
    ),
    ("RateLimit-Policy", "Whose limit it is, and what it allows: `\"user\";q=5;w=10`.", schema_of::<String>),
    ("RateLimit", "What remains, and when more is allowed: `\"user\";r=0;t=3`.", schema_of::<String>),
    ("X-Request-Id", "The id of the request, as in the problem.", schema_of::<String>),
];
