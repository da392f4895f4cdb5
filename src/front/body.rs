//! Reading a request's body within its limits of size and time, and as strict JSON.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::problem::{Answered, BODY_TOO_LARGE, MALFORMED, Problem, REQUEST_TIMEOUT};

pub(super) async fn read(body: Body, limit: usize, within: Duration) -> Answered<Bytes> {
    match tokio::time::timeout(within, Limited::new(body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Problem::new(BODY_TOO_LARGE, format!("the body may have {limit} bytes")))
        }
        Ok(Err(error)) => Err(Problem::new(MALFORMED, format!("reading the body: {error}"))),
        Err(_) => Err(Problem::new(REQUEST_TIMEOUT, format!("the body must arrive within {within:?}"))),
    }
}

/// An empty body is an empty object.
pub(super) fn json<T: DeserializeOwned>(bytes: &[u8]) -> Answered<T> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    // A list would be read as the fields in their order.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Problem::new(MALFORMED, "the body must be a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| Problem::new(MALFORMED, format!("the body: {error}")))
}
