//! One dead letter: how it is written, and what can be read from it. Workers add headers that say what they tried; a
//! message that the broker itself gave up on carries the broker's `x-death` header instead.

use std::fmt;

use lapin::message::BasicGetMessage;
use lapin::types::{AMQPValue, FieldTable};

use super::headers::{self, ATTEMPTS, FIRST_ERROR, LAST_ERROR, REASON, REPLAYS, SINCE};
use super::{Unreadable, message};
use crate::domain::{Millis, Order};

/// The longest error text in a header: a frame has a limit, and nobody reads more.
const LONGEST_TEXT: usize = 500;

/// Why a message became a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The database refused it each time because of its data, not because of an outage.
    Broken,
    /// This build cannot read it.
    Unreadable,
    /// Delivered so often without an answer that the broker gave up. It may crash its worker.
    DeliveryLimit,
    /// Another reason, as the broker names it.
    Other(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Broken => "broken",
            Self::Unreadable => "unreadable",
            Self::DeliveryLimit => "delivery_limit",
            Self::Other(reason) => reason,
        })
    }
}

impl Reason {
    fn read(text: &str) -> Self {
        match text {
            "broken" => Self::Broken,
            "unreadable" => Self::Unreadable,
            "delivery_limit" => Self::DeliveryLimit,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// Why a worker gives up on a delivery.
#[derive(Debug, Clone)]
pub struct Rejection {
    /// The kind of reason.
    pub reason: Reason,
    /// How often it was tried.
    pub attempts: u64,
    /// The error of the first attempt.
    pub first_error: String,
    /// The error of the last attempt.
    pub last_error: String,
}

impl Rejection {
    pub(super) fn headers(&self, replays: u32) -> FieldTable {
        let mut headers = FieldTable::default();
        let cut =
            |text: &str| AMQPValue::LongString(text.chars().take(LONGEST_TEXT).collect::<String>().into());
        headers.insert(REASON.into(), cut(&self.reason.to_string()));
        let attempts = i64::try_from(self.attempts).unwrap_or(i64::MAX);
        headers.insert(ATTEMPTS.into(), AMQPValue::LongLongInt(attempts));
        headers.insert(FIRST_ERROR.into(), cut(&self.first_error));
        headers.insert(LAST_ERROR.into(), cut(&self.last_error));
        headers.insert(REPLAYS.into(), AMQPValue::LongLongInt(i64::from(replays)));
        headers
    }
}

/// A message on the dead-letter queue, and how it got there.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The id of its first order, or of the message if it cannot be read.
    pub id: String,
    /// The orders that the message carries.
    pub orders: Result<Vec<Order>, Unreadable>,
    /// Why it is here.
    pub reason: Reason,
    /// How often it was tried or delivered.
    pub attempts: u64,
    /// How often it was replayed and came back.
    pub replays: u32,
    /// The error of the first attempt.
    pub first_error: Option<String>,
    /// The error of the last attempt.
    pub last_error: Option<String>,
    /// When it became a dead letter, to the second.
    pub since: Option<Millis>,
    /// The message, byte for byte.
    pub payload: Vec<u8>,
}

impl DeadLetter {
    pub(super) fn read(message: &BasicGetMessage) -> Self {
        let properties = &message.properties;
        let headers = properties.headers().as_ref();
        let text_of = |name: &str| headers::find(headers, name).map(headers::text);
        let death = last_death(headers);
        let seconds = match headers::find(death, "time") {
            Some(AMQPValue::Timestamp(seconds)) => Some(*seconds),
            _ => *properties.timestamp(),
        };
        let since = headers::find(headers, SINCE).and_then(headers::number).or_else(|| {
            seconds.and_then(|seconds| i64::try_from(seconds).ok()).map(|seconds| seconds * 1000)
        });
        let reason = text_of(REASON)
            .or_else(|| headers::find(death, "reason").map(headers::text))
            .unwrap_or_else(|| "unknown".into());
        // `x-death` counts dead letters; deliveries are counted by another header.
        let attempts = text_of(ATTEMPTS).or_else(|| text_of(headers::DELIVERY_COUNT));
        let orders = message::read(&message.data);
        Self {
            id: id_of(&orders, properties.message_id().as_ref().map(|id| id.as_str()), &message.data),
            reason: Reason::read(&reason),
            attempts: attempts.and_then(|count| count.parse().ok()).unwrap_or(0),
            replays: headers::replays(headers),
            first_error: text_of(FIRST_ERROR),
            last_error: text_of(LAST_ERROR),
            since: since.map(Millis),
            payload: message.data.clone(),
            orders,
        }
    }

    /// The headers of a dead letter that carries only some of its orders.
    pub(super) fn headers(&self) -> FieldTable {
        let mut headers = FieldTable::default();
        let text = |text: &str| AMQPValue::LongString(text.into());
        headers.insert(REASON.into(), text(&self.reason.to_string()));
        headers.insert(ATTEMPTS.into(), AMQPValue::LongLongInt(self.attempts.cast_signed()));
        headers.insert(REPLAYS.into(), AMQPValue::LongLongInt(i64::from(self.replays)));
        for (name, error) in [(FIRST_ERROR, &self.first_error), (LAST_ERROR, &self.last_error)] {
            if let Some(error) = error {
                headers.insert(name.into(), text(error));
            }
        }
        if let Some(since) = self.since {
            headers.insert(SINCE.into(), AMQPValue::LongLongInt(since.0));
        }
        headers
    }

    pub(super) fn is_called(&self, id: &str) -> bool {
        let has = |orders: &Vec<Order>| orders.iter().any(|order| order.id.to_string() == id);
        self.id == id || self.orders.as_ref().is_ok_and(has)
    }
}

/// The broker's report, if the broker itself gave up on the message.
fn last_death(headers: Option<&FieldTable>) -> Option<&FieldTable> {
    match headers::find(headers, "x-death") {
        Some(AMQPValue::FieldArray(deaths)) => match deaths.as_slice().first() {
            Some(AMQPValue::FieldTable(death)) => Some(death),
            _ => None,
        },
        _ => None,
    }
}

/// The id of the first order, because buyers know it; otherwise the id of the message.
pub(super) fn id_of(orders: &Result<Vec<Order>, Unreadable>, id: Option<&str>, payload: &[u8]) -> String {
    match (orders.as_ref().ok().and_then(|orders| orders.first()), id) {
        (Some(order), _) => order.id.to_string(),
        (None, Some(id)) if !id.is_empty() => id.to_owned(),
        // FNV-1a, only to distinguish messages.
        _ => {
            let digest = payload.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
                (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            format!("message-{digest:016x}")
        }
    }
}
