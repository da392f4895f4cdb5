//! The parts of a request outside its body: the path, the query, and the headers of the contract.

use std::time::Duration;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderMap;

use super::codes::{MALFORMED, NOT_FOUND, ORDER_NOT_FOUND, SALE_NOT_FOUND};
use super::header_names::{IDEMPOTENCY_KEY, PREFER};
use super::problem::{Answered, Problem};
use crate::domain::{IdempotencyKey, OrderId, SaleId};

/// The parameters of a path, or why they cannot be read. A path that is not UTF-8 can then get the same answer as any
/// other unknown path.
pub(super) type PathOf<T> = Result<Path<T>, PathRejection>;

pub(super) fn in_path<T>(path: PathOf<T>) -> Answered<T> {
    path.map(|Path(parts)| parts).map_err(|error| Problem::new(NOT_FOUND, error.to_string()))
}

/// An invalid sale id is answered like a sale that does not exist.
pub(super) fn sale_id(text: &str) -> Answered<SaleId> {
    SaleId::parse(text).map_err(|error| Problem::new(SALE_NOT_FOUND, error.to_string()))
}

pub(super) fn order_id(text: &str) -> Answered<OrderId> {
    text.parse().map_err(|_| Problem::new(ORDER_NOT_FOUND, "an order id is a UUID"))
}

/// An order and the act on it, from `…/sales/{sale}/orders/{id}:{act}`; the act may be empty.
pub(super) fn order_and_act(path: PathOf<(String, String)>) -> Answered<(SaleId, OrderId, String)> {
    let (sale, rest) = in_path(path)?;
    let (id, act) = split_act(&rest);
    let id = order_id(id)?;
    Ok((sale_id(&sale)?, id, act.to_owned()))
}

/// Splits `{id}:{act}`, because the router cannot match a suffix after a parameter.
pub(super) fn split_act(text: &str) -> (&str, &str) {
    text.split_once(':').unwrap_or((text, ""))
}

/// The `Idempotency-Key` header, which may be absent.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Answered<Option<IdempotencyKey>> {
    let mut values = headers.get_all(&IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::new(MALFORMED, "there is more than one Idempotency-Key header"));
    }
    value
        .to_str()
        .ok()
        .and_then(|text| IdempotencyKey::parse(text).ok())
        .map(Some)
        .ok_or_else(|| Problem::new(MALFORMED, "an Idempotency-Key must be 1 to 64 visible ASCII characters"))
}

/// `Prefer: wait=N` (RFC 7240), N in seconds, cut to `longest`. Other preferences are ignored.
pub(super) fn preferred_wait(headers: &HeaderMap, longest: Duration) -> Answered<Option<Duration>> {
    for value in headers.get_all(&PREFER) {
        let text = value.to_str().map_err(|_| Problem::new(MALFORMED, "the Prefer header is not text"))?;
        for preference in text.split([',', ';']) {
            if let Some(seconds) = preference.trim().strip_prefix("wait=") {
                return wait(seconds, longest).map(Some);
            }
        }
    }
    Ok(None)
}

/// `?wait=N`, N in seconds, cut to `longest`; zero if absent.
pub(super) fn query_wait(query: Option<&str>, longest: Duration) -> Answered<Duration> {
    query_value(query, "wait=").map_or(Ok(Duration::ZERO), |seconds| wait(seconds, longest))
}

/// `?after=ID`: the last order of the page before.
pub(super) fn query_after(query: Option<&str>) -> Answered<Option<OrderId>> {
    let after = query_value(query, "after=").map(str::parse).transpose();
    after.map_err(|_| Problem::new(MALFORMED, "after must be the id of an order"))
}

/// `?limit=N`, 1 to `most`; `most` if absent.
pub(super) fn query_limit(query: Option<&str>, most: usize) -> Answered<usize> {
    let Some(text) = query_value(query, "limit=") else { return Ok(most) };
    let limit = text.parse().ok().filter(|limit| (1..=most).contains(limit));
    limit.ok_or_else(|| Problem::new(MALFORMED, format!("limit must be a number from 1 to {most}")))
}

/// The value of the first pair that begins with `name=`.
pub(super) fn query_value<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    query?.split('&').find_map(|pair| pair.strip_prefix(name))
}

fn wait(seconds: &str, longest: Duration) -> Answered<Duration> {
    let seconds: u64 = seconds.parse().map_err(|_| {
        Problem::new(MALFORMED, format!("wait must be a number of seconds, at most {longest:?}"))
    })?;
    Ok(Duration::from_secs(seconds).min(longest))
}
