//! Headers of AMQP messages: their names, and how to read them.

use lapin::types::{AMQPValue, FieldTable};

pub(super) const REASON: &str = "doorbuster-reason";
/// On a dead letter that was split from another: when that one became a dead letter, in milliseconds since 1970.
pub(super) const SINCE: &str = "doorbuster-since";
pub(super) const ATTEMPTS: &str = "doorbuster-attempts";
pub(super) const FIRST_ERROR: &str = "doorbuster-first-error";
pub(super) const LAST_ERROR: &str = "doorbuster-last-error";
/// The number of times that an operator replayed the message. It travels on the message itself, so that it comes
/// back with it.
pub(super) const REPLAYS: &str = "doorbuster-replays";
/// Written by quorum queues: deliveries before this one.
pub(super) const DELIVERY_COUNT: &str = "x-delivery-count";
/// Written by streams: the place of a message.
pub(super) const STREAM_OFFSET: &str = "x-stream-offset";

/// The value of a header.
pub(super) fn find<'a>(headers: Option<&'a FieldTable>, name: &str) -> Option<&'a AMQPValue> {
    headers?.inner().iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| value)
}

/// A header that counts something. `None` if it is missing or not a count.
pub(super) fn count(headers: Option<&FieldTable>, name: &str) -> Option<u64> {
    find(headers, name).and_then(number).and_then(|number| u64::try_from(number).ok())
}

/// How often a message was replayed already.
pub(super) fn replays(headers: Option<&FieldTable>) -> u32 {
    count(headers, REPLAYS).and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

pub(super) fn text(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => text.to_string(),
        AMQPValue::ShortString(text) => text.to_string(),
        other => number(other).map(|number| number.to_string()).unwrap_or_default(),
    }
}

/// Brokers and libraries write small numbers in many widths.
pub(super) fn number(value: &AMQPValue) -> Option<i64> {
    match value {
        AMQPValue::LongLongInt(number) => Some(*number),
        AMQPValue::LongInt(number) => Some(i64::from(*number)),
        AMQPValue::LongUInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortUInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortShortInt(number) => Some(i64::from(*number)),
        AMQPValue::ShortShortUInt(number) => Some(i64::from(*number)),
        _ => None,
    }
}
