//! How orders are written to Redis and how replies are read. Fields are joined by `|`, which no identifier can
//! contain.

use uuid::Uuid;

use super::error::GateError;
use crate::domain::{Durability, Millis, Number, Order, OrderId, SaleId, Ticket};

pub(super) fn broken(what: &str, text: impl std::fmt::Debug) -> GateError {
    GateError::Broken(format!("{what}: {text:?}"))
}

pub(super) fn order_id(id: OrderId) -> String {
    id.uuid().simple().to_string()
}

pub(super) fn read_order_id(text: &str) -> Result<OrderId, GateError> {
    Uuid::try_parse(text).map(OrderId::from).map_err(|_| broken("an order id", text))
}

/// A record in the `users` hash: the facts about an order that are needed as long as the sale is loaded.
pub(super) fn record(order: &Order) -> String {
    format!("{}|{}|{}|{}|{}", order_id(order.id), order.key, order.fingerprint, order.sku, order.quantity)
}

/// Reads `state|epoch|seq|accepted_at|limit|id|user|sku|quantity|key|fingerprint`, as `admit.lua` writes it.
pub(super) fn read_entry(sale: &SaleId, entry: &str) -> Result<Ticket, GateError> {
    let fields: Vec<&str> = entry.split('|').collect();
    let [state, epoch, seq, at, limit, id, user, sku, quantity, key, fingerprint] = fields[..] else {
        return Err(broken("an outbox entry", entry));
    };
    let unreadable = || broken("an outbox entry", entry);
    let order = Order {
        id: read_order_id(id)?,
        sale: sale.clone(),
        user: user.parse().map_err(|_| unreadable())?,
        sku: sku.parse().map_err(|_| unreadable())?,
        quantity: quantity.parse().map_err(|_| unreadable())?,
        key: key.parse().map_err(|_| unreadable())?,
        fingerprint: fingerprint.parse().map_err(|_| unreadable())?,
        number: Number {
            epoch: epoch.parse().map_err(|_| unreadable())?,
            seq: seq.parse().map_err(|_| unreadable())?,
        },
        limit: limit.parse().map_err(|_| unreadable())?,
        accepted_at: Millis(at.parse().map_err(|_| unreadable())?),
    };
    let durability = match state {
        "outbox" => Durability::Outbox,
        // The dead-letter queue is at the broker too.
        "broker" | "parked" | "ended" => Durability::Broker,
        _ => return Err(unreadable()),
    };
    Ok(Ticket { order, durability, parked: state == "parked", ended: state == "ended" })
}

/// The outbox entry of an order that RabbitMQ holds, in its queue or parked as a dead letter.
pub(super) fn entry(order: &Order, parked: bool) -> String {
    let state = if parked { "parked" } else { "broker" };
    format!(
        "{state}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}",
        order.number.epoch,
        order.number.seq,
        order.accepted_at.0,
        order.limit,
        order_id(order.id),
        order.user,
        order.sku,
        order.quantity,
        order.key,
        order.fingerprint
    )
}

/// Reads a reply from left to right. An error names what was expected.
pub(super) struct Reader<'a> {
    values: std::slice::Iter<'a, redis::Value>,
}

impl<'a> Reader<'a> {
    pub(super) fn of(value: &'a redis::Value) -> Result<Self, GateError> {
        match value {
            redis::Value::Array(values) => Ok(Self { values: values.iter() }),
            other => Err(broken("expected a list, not", other)),
        }
    }

    pub(super) fn value(&mut self) -> Result<&'a redis::Value, GateError> {
        self.values.next().ok_or_else(|| broken("a reply", "ended early"))
    }

    pub(super) fn list(&mut self) -> Result<Reader<'a>, GateError> {
        Reader::of(self.value()?)
    }

    pub(super) fn text(&mut self) -> Result<String, GateError> {
        let value = self.value()?;
        redis::from_redis_value_ref(value).map_err(|_| broken("expected a text, not", value))
    }

    pub(super) fn number(&mut self) -> Result<i64, GateError> {
        let text = self.text()?;
        text.parse().map_err(|_| broken("expected a number, not", text))
    }

    pub(super) fn millis(&mut self) -> Result<Millis, GateError> {
        self.number().map(Millis)
    }

    /// The remaining values as pairs, as HGETALL returns them.
    pub(super) fn pairs(mut self) -> Result<Vec<(String, String)>, GateError> {
        let mut pairs = Vec::new();
        while self.values.len() > 0 {
            pairs.push((self.text()?, self.text()?));
        }
        Ok(pairs)
    }
}

/// The reply of a script that answers with a single word; `None` for any other reply.
pub(super) fn word(value: &redis::Value) -> Option<String> {
    match value {
        redis::Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        redis::Value::SimpleString(text) => Some(text.clone()),
        redis::Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// The reply of a script that acts on a sale: a list, or the reason why the script did not act.
pub(super) fn acted(reply: &redis::Value) -> Result<Reader<'_>, GateError> {
    match word(reply).as_deref() {
        Some("frozen") => Err(GateError::Frozen),
        Some("not_loaded") => Err(GateError::NotLoaded),
        Some("outdated") => Err(GateError::Outdated),
        _ => Reader::of(reply),
    }
}
