//! Dead letters: messages that no worker could process. They wait on `P.dead` until somebody has
//! them processed again or ends their orders; nothing else takes them from there.
//!
//! Looking at them takes them for a moment and puts them back, so two who look at the same time
//! may each see a part.

use std::fmt;
use std::sync::Arc;

use lapin::Acker;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions};
use lapin::types::{AMQPValue, FieldTable};
use tokio::sync::Mutex;

use super::consumer::Delivery;
use super::link::{Link, within};
use super::topology::{Depths, Names};
use super::{PublishError, Publisher, QueueError, QueueSettings, Unreadable, message};
use crate::domain::{Millis, Order};

const REASON: &str = "doorbuster-reason";
/// Of a part: when the whole became a letter, in milliseconds since 1970.
const SINCE: &str = "doorbuster-since";
const ATTEMPTS: &str = "doorbuster-attempts";
const FIRST_ERROR: &str = "doorbuster-first-error";
const LAST_ERROR: &str = "doorbuster-last-error";
/// Times that an operator had it processed again. On the message itself, so that it comes back with it.
const REPLAYS: &str = "doorbuster-replays";

/// Why a message became a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The database refused it each time, for what it says and not for an outage.
    Broken,
    /// This build cannot read it.
    Unreadable,
    /// Delivered so often without an answer that the broker gave up: it may crash its worker.
    DeliveryLimit,
    /// Something else that the broker names.
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

/// What is known of a dead letter.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// What to call it by: the id of its (first) order, or of the message.
    pub id: String,
    pub orders: Result<Vec<Order>, Unreadable>,
    pub reason: Reason,
    pub attempts: u64,
    /// Times that it was replayed, and came back.
    pub replays: u32,
    pub first_error: Option<String>,
    pub last_error: Option<String>,
    /// When it became one, to the second.
    pub since: Option<Millis>,
    /// What the message says, byte for byte.
    pub payload: Vec<u8>,
}

/// Why a delivery is given up.
#[derive(Debug, Clone)]
pub struct Rejection {
    pub reason: Reason,
    pub attempts: u64,
    pub first_error: String,
    pub last_error: String,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct DeadLetters {
    settings: QueueSettings,
    publisher: Publisher,
    /// The publisher takes one at a time, and several may want to write.
    turn: Arc<Mutex<()>>,
}

/// A letter in the hands of this process. Dropped, it goes back.
pub struct HeldDeadLetter {
    pub letter: DeadLetter,
    acker: Acker,
    link: Link,
}

/// Dead letters that are split in one go: each order is a publish of its own.
const SPLIT_AT_ONCE: usize = 10;

/// Dead letters in the hands of this process. Dropped, they go back.
pub struct HeldDeadLetters {
    pub letters: Vec<DeadLetter>,
    ackers: Vec<Acker>,
    link: Link,
}

impl HeldDeadLetters {
    /// Makes one letter of each order of those letters that have several, of some of them: the others are
    /// left for the next time, as is what fails.
    pub async fn split(&self, by: &DeadLetters) -> Result<(), PublishError> {
        let mut split = 0;
        for (letter, acker) in self.letters.iter().zip(&self.ackers) {
            if let Ok(orders @ [_, _, ..]) = letter.orders.as_deref() {
                by.write_split(letter, orders).await?;
                split += 1;
                // Where this fails the link has ended: the letter comes back, and so would all others.
                let removed = acker.ack(BasicAckOptions::default()).await.unwrap_or(false);
                if !removed || split == SPLIT_AT_ONCE {
                    break;
                }
            }
        }
        Ok(())
    }

    pub async fn put_back(self) {
        put_back(&self.link).await;
        self.link.close().await;
    }
}

impl DeadLetters {
    /// Must be called inside a tokio runtime. Does not wait for the broker.
    ///
    /// Dead letters have a channel of their own, with one publish under way at a time: lapin may hand a
    /// returned message to the confirm of another, and a letter that was taken for written is an
    /// order that nobody looks for. An order is safe from that, because its outbox entry stays.
    pub fn open(settings: QueueSettings) -> Self {
        let one_at_a_time = QueueSettings { window: 1, ..settings.clone() };
        Self { settings, publisher: Publisher::open(one_at_a_time), turn: Arc::default() }
    }

    /// Publishes the orders of a letter again, as replayed once more; on `Ok` the broker has them.
    pub async fn replay(&self, letter: &DeadLetter, orders: &[Order]) -> Result<(), PublishError> {
        let mut headers = FieldTable::default();
        headers.insert(REPLAYS.into(), AMQPValue::LongLongInt(i64::from(letter.replays) + 1));
        let _turn = self.turn.lock().await;
        self.publisher.publish_with(orders, headers).await
    }

    /// Returns once letters can be written and published again.
    pub async fn wait_until_up(&self) {
        self.publisher.wait_until_up().await;
    }

    /// What waits in the queues, as it was some seconds ago; `None` while the broker is away.
    pub fn depths(&self) -> Option<Depths> {
        self.publisher.depths()
    }

    /// On `Ok` a letter with one order of the delivery's, or with its whole message, lies on the
    /// dead-letter queue; the delivery itself is still to be acknowledged. Repeated, it lies there twice.
    pub async fn write(
        &self,
        delivery: &Delivery,
        order: Option<&Order>,
        rejection: &Rejection,
    ) -> Result<(), PublishError> {
        let mut headers = FieldTable::default();
        // A frame has a limit, and nobody reads more.
        let cut = |text: &str| AMQPValue::LongString(text.chars().take(500).collect::<String>().into());
        headers.insert(REASON.into(), cut(&rejection.reason.to_string()));
        let attempts = i64::try_from(rejection.attempts).unwrap_or(i64::MAX);
        headers.insert(ATTEMPTS.into(), AMQPValue::LongLongInt(attempts));
        headers.insert(FIRST_ERROR.into(), cut(&rejection.first_error));
        headers.insert(LAST_ERROR.into(), cut(&rejection.last_error));
        headers.insert(REPLAYS.into(), AMQPValue::LongLongInt(i64::from(delivery.replays)));
        let (id, payload) = match order {
            Some(order) => (order.id.to_string(), message::write(std::slice::from_ref(order))),
            None => {
                let id = name(&delivery.orders, delivery.id.as_deref(), &delivery.payload);
                (id, delivery.payload.clone())
            }
        };
        let _turn = self.turn.lock().await;
        self.publisher.dead_letter(id, payload, headers).await
    }

    /// Makes one letter of each order of a letter that has several, as the broker writes when it gives up
    /// a message: what an operator decides about one must not happen to the others. On `Ok` the parts lie
    /// on the queue; the letter itself is still to be removed. Repeated, they lie there twice.
    async fn write_split(&self, letter: &DeadLetter, orders: &[Order]) -> Result<(), PublishError> {
        for order in orders {
            let mut headers = FieldTable::default();
            let said = |text: &str| AMQPValue::LongString(text.into());
            headers.insert(REASON.into(), said(&letter.reason.to_string()));
            headers.insert(ATTEMPTS.into(), AMQPValue::LongLongInt(letter.attempts.cast_signed()));
            headers.insert(REPLAYS.into(), AMQPValue::LongLongInt(i64::from(letter.replays)));
            for (name, error) in [(FIRST_ERROR, &letter.first_error), (LAST_ERROR, &letter.last_error)] {
                if let Some(error) = error {
                    headers.insert(name.into(), said(error));
                }
            }
            if let Some(since) = letter.since {
                headers.insert(SINCE.into(), AMQPValue::LongLongInt(since.0));
            }
            let payload = message::write(std::slice::from_ref(order));
            let _turn = self.turn.lock().await;
            self.publisher.dead_letter(order.id.to_string(), payload, headers).await?;
        }
        Ok(())
    }

    /// Up to `most` letters, the oldest first.
    pub async fn list(&self, most: usize) -> Result<Vec<DeadLetter>, QueueError> {
        let held = self.hold(most).await?;
        let letters = held.letters.clone();
        held.put_back().await;
        Ok(letters)
    }

    /// The same, in the hands of this process: nobody else can end them meanwhile.
    pub async fn hold(&self, most: usize) -> Result<HeldDeadLetters, QueueError> {
        let link = Link::open(&self.settings, "dead-letters").await?;
        let (mut letters, mut ackers) = (Vec::new(), Vec::new());
        while letters.len() < most
            && let Some(message) = self.get(&link).await?
        {
            letters.push(read(&message));
            ackers.push(message.delivery.acker);
        }
        Ok(HeldDeadLetters { letters, ackers, link })
    }

    /// Makes one letter of each order of one that has several.
    pub async fn split(&self, held: HeldDeadLetter) -> Result<(), QueueError> {
        let orders = held.letter.orders.as_deref().unwrap_or_default();
        match self.write_split(&held.letter, orders).await {
            Ok(()) => held.done().await,
            Err(error) => {
                held.put_back().await;
                Err(QueueError(error.to_string()))
            }
        }
    }

    /// Takes the oldest letter with this id, or with an order of it, in hand; `None` where there is none.
    pub async fn take(&self, id: &str) -> Result<Option<HeldDeadLetter>, QueueError> {
        let link = Link::open(&self.settings, "dead-letters").await?;
        let mut others = Vec::new();
        let mut found = None;
        while let Some(message) = self.get(&link).await? {
            let letter = read(&message);
            let acker = message.delivery.acker;
            let has = |orders: &Vec<Order>| orders.iter().any(|order| order.id.to_string() == id);
            if letter.id == id || letter.orders.as_ref().is_ok_and(has) {
                found = Some((letter, acker));
                break;
            }
            others.push(acker);
        }
        for other in others {
            other.nack(BasicNackOptions { requeue: true, ..Default::default() }).await?;
        }
        match found {
            Some((letter, acker)) => Ok(Some(HeldDeadLetter { letter, acker, link })),
            None => {
                link.close().await;
                Ok(None)
            }
        }
    }

    async fn get(&self, link: &Link) -> Result<Option<BasicGetMessage>, QueueError> {
        let name = Names::new(&self.settings.prefix).dead;
        let get = link.channel.basic_get(name.as_str().into(), BasicGetOptions { no_ack: false });
        within(self.settings.timeout, async { Ok(get.await?) }).await
    }
}

impl HeldDeadLetter {
    /// Its orders have an end, or are on their way again: it is not needed any more. A copy that lies
    /// there too is ended by itself, and changes nothing.
    pub async fn done(self) -> Result<(), QueueError> {
        self.acker.ack(BasicAckOptions::default()).await?;
        self.link.close().await;
        Ok(())
    }

    pub async fn put_back(self) {
        put_back(&self.link).await;
        self.link.close().await;
    }
}

/// Everything that this link holds. What fails here the broker does by itself when the link ends.
async fn put_back(link: &Link) {
    let all = BasicNackOptions { multiple: true, requeue: true };
    let _ = link.channel.basic_nack(0, all).await;
}

/// By its order, so that it is found by what a buyer knows; else by what the message is called.
fn name(orders: &Result<Vec<Order>, Unreadable>, id: Option<&str>, payload: &[u8]) -> String {
    match (orders.as_ref().ok().and_then(|orders| orders.first()), id) {
        (Some(order), _) => order.id.to_string(),
        (None, Some(id)) if !id.is_empty() => id.to_owned(),
        // FNV-1a: only to tell one from another.
        _ => {
            let digest = payload.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
                (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            format!("message-{digest:016x}")
        }
    }
}

/// How often a message was replayed already.
pub(super) fn replays(headers: Option<&FieldTable>) -> u32 {
    let count = headers.and_then(|headers| {
        let (_, count) = headers.inner().iter().find(|(name, _)| name.as_str() == REPLAYS)?;
        number(count).and_then(|count| u32::try_from(count).ok())
    });
    count.unwrap_or(0)
}

fn read(message: &BasicGetMessage) -> DeadLetter {
    let properties = &message.properties;
    let header = |name: &str| {
        let headers = properties.headers().as_ref()?;
        headers.inner().iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| value)
    };
    let said = |name: &str| header(name).map(text);
    // What the broker itself gave up carries its own account.
    let death = match header("x-death") {
        Some(AMQPValue::FieldArray(deaths)) => deaths.as_slice().first(),
        _ => None,
    };
    let of_death = |name: &str| match death {
        Some(AMQPValue::FieldTable(death)) => {
            death.inner().iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| value)
        }
        _ => None,
    };
    let seconds = match of_death("time") {
        Some(AMQPValue::Timestamp(seconds)) => Some(*seconds),
        _ => *properties.timestamp(),
    };
    let orders = message::read(&message.data);
    let reason = said(REASON).or_else(|| of_death("reason").map(text)).unwrap_or_else(|| "unknown".into());
    // The broker's own count is of dead letters; how often it was delivered is another header.
    let attempts = said(ATTEMPTS).or_else(|| said("x-delivery-count"));
    DeadLetter {
        id: name(&orders, properties.message_id().as_ref().map(|id| id.as_str()), &message.data),
        reason: Reason::read(&reason),
        attempts: attempts.and_then(|count| count.parse().ok()).unwrap_or(0),
        replays: replays(properties.headers().as_ref()),
        first_error: said(FIRST_ERROR),
        last_error: said(LAST_ERROR),
        since: header(SINCE).and_then(number).map(Millis).or_else(|| {
            seconds.and_then(|seconds| i64::try_from(seconds).ok()).map(|seconds| Millis(seconds * 1000))
        }),
        payload: message.data.clone(),
        orders,
    }
}

fn text(value: &AMQPValue) -> String {
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
