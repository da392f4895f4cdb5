//! Reads a request's body within its limits of size and time, and parses it as strict JSON.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::codes::{BODY_TOO_LARGE, MALFORMED, REQUEST_TIMEOUT};
use super::problem::{Answered, Problem};

/// The limit, in bytes, for bodies larger than an order: a sale, an act on it, a payment event.
pub(super) const LARGE: usize = 64 * 1024;

/// The body of an act on an order.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    /// Why, in the caller's words.
    #[serde(default)]
    pub(super) reason: Option<String>,
}

pub(super) async fn read(body: Body, limit: usize, within: Duration) -> Answered<Bytes> {
    match tokio::time::timeout(within, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Problem::new(BODY_TOO_LARGE, format!("the body may have at most {limit} bytes")))
        }
        Ok(Err(error)) => Err(Problem::new(MALFORMED, format!("reading the body: {error}"))),
        Err(_) => Err(Problem::new(REQUEST_TIMEOUT, format!("the body must arrive within {within:?}"))),
    }
}

/// An empty body counts as an empty object.
pub(super) fn json<T: DeserializeOwned>(bytes: &[u8]) -> Answered<T> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    // serde would also accept a list and read it as the fields in order.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Problem::new(MALFORMED, "the body must be a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| malformed(&error))
}

/// Reads fields from JSON that is parsed already.
pub(super) fn fields<T: DeserializeOwned>(fields: Value) -> Answered<T> {
    serde_json::from_value(fields).map_err(|error| malformed(&error))
}

fn malformed(error: &serde_json::Error) -> Box<Problem> {
    Problem::new(MALFORMED, format!("the body: {error}"))
}
