//! Reads a request's body within its limits of size and time, and parses it as strict JSON.

use std::pin::pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::codes::{BODY_TOO_LARGE, MALFORMED, REQUEST_TIMEOUT};
use super::problem::{Answered, Problem};

/// The limit, in bytes, for bodies larger than an order: a sale, an act on it, a payment event.
pub(super) const LARGE: usize = 64 * 1024;

/// Pieces of a body, each of which costs a turn of the runtime: packets, or chunks that the client makes. The largest body
/// comes in some fifty.
const MOST_PIECES: usize = 1_000;

/// The body of an act on an order.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    /// Why, in the caller's words.
    #[serde(default)]
    pub(super) reason: Option<String>,
}

pub(super) async fn read(body: Body, limit: usize, within: Duration) -> Answered<Bytes> {
    let mut collected = pin!(collect(Limited::new(body, limit), limit));
    // Most bodies arrive with the head, and need no timer.
    if let Some(collected) = collected.as_mut().now_or_never() {
        return collected;
    }
    let late = |_| Problem::new(REQUEST_TIMEOUT, format!("the body must arrive within {within:?}"));
    tokio::time::timeout(within, collected).await.map_err(late)?
}

async fn collect(mut body: Limited<Body>, limit: usize) -> Answered<Bytes> {
    // Most bodies come in one piece, which is not copied.
    let (mut first, mut joined) = (Bytes::new(), Vec::new());
    for _ in 0..MOST_PIECES {
        let Some(frame) = body.frame().await else {
            return Ok(if joined.is_empty() { first } else { joined.into() });
        };
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Problem::new(BODY_TOO_LARGE, format!("the body may have at most {limit} bytes"))
            } else {
                Problem::new(MALFORMED, format!("reading the body: {error}"))
            }
        })?;
        // Trailers are ignored.
        let data = frame.into_data().unwrap_or_default();
        if first.is_empty() {
            // Most bodies end here, and asking for another piece would register a waker.
            if body.is_end_stream() {
                return Ok(data);
            }
            first = data;
        } else {
            if joined.is_empty() {
                joined.extend_from_slice(&first);
            }
            joined.extend_from_slice(&data);
        }
    }
    Err(Problem::new(BODY_TOO_LARGE, format!("the body may come in at most {MOST_PIECES} pieces")))
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
