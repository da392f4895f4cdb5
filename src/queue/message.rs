//! The envelope: a version and a list of orders, as JSON. Documented because a message on the queue outlives the
//! process that wrote it.
//!
//! ```json
//! {"v":1,"orders":[{"order_id":"…","sale_id":"drop","user_id":"ada","sku":"shoe","quantity":1,
//!   "key":"…","fingerprint":"…","epoch":1,"seq":7,"limit":1,"accepted_at":"2030-05-01T12:00:00.000Z"}]}
//! ```
//!
//! Orders whose traces are recorded have their place in them before the orders: `"traces":{"…":"00-…-…-01"}`.
//!
//! The order log also has messages with `entries` in place of `orders`: see [`Entry`]. Each entry is read separately,
//! so one that this build cannot read hides no other. Such a message witnesses how far the database had come with its
//! sales: `"places":{"drop":{"line":1,"number":7}}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::{Entry, Order, OrderId, Place, SaleId, TraceContext};

/// The version that this build writes, and the only one that it reads. Messages of other versions are parked on the
/// dead-letter queue, for a build that knows them.
pub const VERSION: u32 = 1;

/// Maximum orders in one message, so that the broker's frames and a worker's batch stay small.
const MOST: usize = 1_000;

#[derive(Serialize)]
struct Envelope<'a> {
    v: u32,
    // First, so that a reader need not look for it.
    #[serde(skip_serializing_if = "Traces::is_empty")]
    traces: &'a Traces,
    orders: &'a [Order],
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Deserialize)]
struct Orders {
    orders: Vec<Order>,
}

/// Why this build cannot read a message. Retrying does not help.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

/// The places of orders in their traces, of those whose traces are recorded.
pub type Traces = BTreeMap<OrderId, TraceContext>;

pub(super) fn write(orders: &[Order], traces: &Traces) -> Vec<u8> {
    // Orders are texts and numbers, so serialising them cannot fail.
    serde_json::to_vec(&Envelope { v: VERSION, traces, orders }).unwrap_or_default()
}

/// How every message with traces begins.
const WITH_TRACES: &[u8] = b"{\"v\":1,\"traces\":";

/// What cannot be read is left out: a message does not fail because of its traces.
pub(super) fn read_traces(payload: &[u8]) -> Traces {
    #[derive(Deserialize)]
    struct Traced {
        traces: BTreeMap<OrderId, String>,
    }
    if !payload.starts_with(WITH_TRACES) {
        return Traces::new();
    }
    let Ok(Traced { traces }) = serde_json::from_slice(payload) else { return Traces::new() };
    let read = |(order, text): (OrderId, String)| Some((order, TraceContext::parse(&text)?));
    traces.into_iter().filter_map(read).collect()
}

pub(super) fn read(payload: &[u8]) -> Result<Vec<Order>, Unreadable> {
    let unreadable = |error: serde_json::Error| Unreadable(error.to_string());
    let Version { v } = serde_json::from_slice(payload).map_err(unreadable)?;
    if v != VERSION {
        return Err(Unreadable(format!("version {v} of the envelope; this build reads {VERSION}")));
    }
    let Orders { orders } = serde_json::from_slice(payload).map_err(unreadable)?;
    if !(1..=MOST).contains(&orders.len()) {
        return Err(Unreadable(format!("{} orders in one message", orders.len())));
    }
    Ok(orders)
}

#[derive(Serialize)]
struct Logged<'a> {
    v: u32,
    entries: &'a [Entry],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    places: &'a BTreeMap<SaleId, Place>,
}

#[derive(Deserialize)]
struct Either {
    v: u32,
    #[serde(default)]
    orders: Vec<serde_json::Value>,
    #[serde(default)]
    entries: Vec<serde_json::Value>,
    #[serde(default)]
    places: BTreeMap<SaleId, Place>,
}

/// What a message of the log says.
pub(super) struct Read {
    pub(super) entries: Vec<Result<Entry, Unreadable>>,
    pub(super) places: BTreeMap<SaleId, Place>,
}

impl Read {
    fn failed(why: Unreadable) -> Self {
        Self { entries: vec![Err(why)], places: BTreeMap::new() }
    }
}

pub(super) fn write_entries(entries: &[Entry], places: &BTreeMap<SaleId, Place>) -> Vec<u8> {
    serde_json::to_vec(&Logged { v: VERSION, entries, places }).unwrap_or_default()
}

/// Reads a message of the log: published orders, or entries.
pub(super) fn read_logged(payload: &[u8]) -> Read {
    let unreadable = |error: serde_json::Error| Unreadable(error.to_string());
    let either = match serde_json::from_slice::<Either>(payload) {
        Ok(either) if either.v == VERSION => either,
        Ok(either) => {
            let why = format!("version {} of the envelope; this build reads {VERSION}", either.v);
            return Read::failed(Unreadable(why));
        }
        Err(error) => return Read::failed(unreadable(error)),
    };
    let orders = either
        .orders
        .into_iter()
        .map(|order| serde_json::from_value(order).map(Entry::Accepted).map_err(unreadable));
    let entries = either.entries.into_iter().map(|entry| serde_json::from_value(entry).map_err(unreadable));
    Read { entries: orders.chain(entries).collect(), places: either.places }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Fingerprint, KeyDigest, Millis, Number, OrderId, SaleId, Sku, UserId};

    fn order() -> Order {
        let sku = Sku::parse("shoe").expect("valid");
        Order {
            id: OrderId::generate(),
            sale: SaleId::parse("drop").expect("valid"),
            user: UserId::parse("ada@example.org").expect("valid"),
            quantity: 2,
            key: KeyDigest::of_key(None),
            fingerprint: Fingerprint::of_body(&sku, 2),
            sku,
            number: Number { epoch: 1, seq: 7 },
            limit: 3,
            accepted_at: Millis(1_700_000_000_000),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let orders = vec![order(), order()];
        assert_eq!(read(&write(&orders, &Traces::new())).expect("readable"), orders);
    }

    #[test]
    fn traces_travel_with_the_orders_and_hold_up_none() {
        let orders = vec![order(), order()];
        assert!(read_traces(&write(&orders, &Traces::new())).is_empty());
        let context = TraceContext { trace: 7, span: 9, is_sampled: true };
        let traces = Traces::from([(orders[1].id, context)]);
        let message = write(&orders, &traces);
        assert_eq!(read_traces(&message), traces);
        assert_eq!(read(&message).expect("readable"), orders);
        assert_eq!(read_logged(&message).entries.len(), 2);
        let text = String::from_utf8(message).expect("text");
        // With its quote, because an order id may contain `00-` as well.
        for broken in [
            text.replace("\"00-", "\"zz-"),
            text.replacen('{', "[", 2),
            text.replace("\"traces\":{", "\"traces\":7,\"x\":{"),
        ] {
            assert!(read_traces(broken.as_bytes()).is_empty(), "{broken}");
        }
        assert_eq!(read(text.replace("\"00-", "\"zz-").as_bytes()).expect("readable"), orders);
    }

    #[test]
    fn what_this_build_does_not_know_is_said_and_not_guessed() {
        let mut later =
            serde_json::from_slice::<serde_json::Value>(&write(&[order()], &Traces::new())).expect("JSON");
        later["v"] = 2.into();
        let error = read(later.to_string().as_bytes()).expect_err("version 2");
        assert_eq!(error.to_string(), "version 2 of the envelope; this build reads 1");
        for broken in ["", "{}", r#"{"v":1}"#, r#"{"v":1,"orders":[]}"#, r#"{"v":1,"orders":[{}]}"#] {
            assert!(read(broken.as_bytes()).is_err(), "{broken:?}");
        }
    }
}
