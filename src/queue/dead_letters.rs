//! The dead-letter queue, `P.dead`: messages that no worker could process. They wait there until an operator replays
//! them or ends their orders; nothing else removes them.
//!
//! Reading them takes them off the queue for a moment and puts them back, so two readers at the same time may each see
//! only some. A list therefore looks a second time, when the other has put them back.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::Acker;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions};
use lapin::types::{AMQPValue, FieldTable};
use rand::RngExt as _;
use tokio::sync::Mutex;

use super::dead_letter::{DeadLetter, Rejection, id_of};
use super::delivery::Delivery;
use super::headers::REPLAYS;
use super::link::{Link, acknowledged, within};
use super::message::Traces;
use super::topology::{Depths, Names};
use super::{PublishError, Publisher, QueueError, QueueSettings, message};
use crate::domain::Order;

/// Maximum dead letters to split in one call: each order is a separate publish.
const SPLIT_AT_ONCE: usize = 10;

/// How long another reader, such as the sweep, may hold some of them: for some hundreds it takes less. A random time, so
/// that two lists that begin together do not look together again.
const HELD_ELSEWHERE: RangeInclusive<u64> = 500..=700;

/// A handle to the dead-letter queue. Cheap to clone.
#[derive(Clone)]
pub struct DeadLetters {
    settings: QueueSettings,
    publisher: Publisher,
    /// The publisher takes one message at a time, and several tasks may want to write.
    turn: Arc<Mutex<()>>,
}

impl DeadLetters {
    /// Must be called inside a tokio runtime. Does not wait for the broker.
    ///
    /// Dead letters have a separate channel with one publish under way at a time: lapin may match a returned message
    /// with the confirm of another, and a dead letter that is wrongly taken for written is an order that nobody looks
    /// for. Orders need no such care, because their outbox entry stays.
    pub fn open(settings: QueueSettings) -> Self {
        let one_at_a_time = QueueSettings { window: 1, ..settings.clone() };
        Self { settings, publisher: Publisher::open(one_at_a_time), turn: Arc::default() }
    }

    /// Publishes the orders of a dead letter to the workers, with its count of replays raised by one. On `Ok` the
    /// broker has them; the caller still has to remove the dead letter. May be repeated: workers recognise an order
    /// that they have seen.
    pub async fn replay(&self, letter: &DeadLetter, orders: &[Order]) -> Result<(), PublishError> {
        let mut headers = FieldTable::default();
        headers.insert(REPLAYS.into(), AMQPValue::LongLongInt(i64::from(letter.replays) + 1));
        let _turn = self.turn.lock().await;
        self.publisher.publish_with(orders, &Traces::new(), headers).await
    }

    /// Returns once dead letters can be written and replayed.
    pub async fn wait_until_up(&self) {
        self.publisher.wait_until_up().await;
    }

    /// The messages that wait in the queues, up to 5 s ago; `None` while the broker is unavailable.
    pub fn depths(&self) -> Option<Depths> {
        self.publisher.depths()
    }

    /// On `Ok` a dead letter with one order of the delivery, or with its whole message, is on the dead-letter queue;
    /// the caller still has to acknowledge the delivery. If repeated, it is there twice.
    pub async fn write(
        &self,
        delivery: &Delivery,
        order: Option<&Order>,
        rejection: &Rejection,
    ) -> Result<(), PublishError> {
        let headers = rejection.headers(delivery.replays);
        let (id, payload) = match order {
            Some(order) => {
                (order.id.to_string(), message::write(std::slice::from_ref(order), &Traces::new()))
            }
            None => {
                let id = id_of(&delivery.orders, delivery.id.as_deref(), &delivery.payload);
                (id, delivery.payload.clone())
            }
        };
        let _turn = self.turn.lock().await;
        self.publisher.publish_dead_letter(id, payload, headers).await
    }

    /// Writes a separate dead letter for each order of a dead letter with several, such as the broker leaves when it
    /// gives up on a message: an operator's decision about one order must not affect the others. On `Ok` the new dead
    /// letters are on the queue; the caller still has to remove the old one. If repeated, they are there twice.
    async fn write_split(&self, letter: &DeadLetter, orders: &[Order]) -> Result<(), PublishError> {
        for order in orders {
            let payload = message::write(std::slice::from_ref(order), &Traces::new());
            let _turn = self.turn.lock().await;
            self.publisher.publish_dead_letter(order.id.to_string(), payload, letter.headers()).await?;
        }
        Ok(())
    }

    /// Reads up to `most` dead letters, oldest first. Waits half a second and looks again if it found fewer, so that it
    /// does not miss those that another reader holds for a moment.
    pub async fn list(&self, most: usize) -> Result<Vec<DeadLetter>, QueueError> {
        let first = self.look(most).await?;
        if first.len() >= most {
            return Ok(first);
        }
        let pause = rand::rng().random_range(HELD_ELSEWHERE);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let mut letters = self.look(most).await?;
        // Those that only the first look found are held by somebody else now.
        let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
        for letter in &letters {
            *seen.entry(letter.payload.clone()).or_default() += 1;
        }
        for letter in first {
            match seen.get_mut(&letter.payload).filter(|times| **times > 0) {
                Some(times) => *times -= 1,
                None => letters.push(letter),
            }
        }
        letters.sort_by_key(|letter| letter.since);
        letters.truncate(most);
        Ok(letters)
    }

    async fn look(&self, most: usize) -> Result<Vec<DeadLetter>, QueueError> {
        let held = self.hold(most).await?;
        let letters = held.letters.clone();
        held.put_back().await;
        Ok(letters)
    }

    /// Holds up to `most` dead letters that no other reader holds: until they are put back or dropped, no other process can
    /// end them.
    pub async fn hold(&self, most: usize) -> Result<HeldDeadLetters, QueueError> {
        self.hold_within(most, Duration::MAX).await
    }

    /// The same, but ends with those that were read within this time.
    pub async fn hold_within(&self, most: usize, within: Duration) -> Result<HeldDeadLetters, QueueError> {
        let link = Link::open(&self.settings, "dead-letters").await?;
        let began = Instant::now();
        let (mut letters, mut ackers) = (Vec::new(), Vec::new());
        while letters.len() < most
            && began.elapsed() < within
            && let Some(message) = self.get(&link).await?
        {
            letters.push(DeadLetter::read(&message));
            ackers.push(message.delivery.acker);
        }
        Ok(HeldDeadLetters { letters, ackers, link })
    }

    /// Replaces a dead letter that has several orders by one for each. On an error the old one stays.
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

    /// Holds the oldest dead letter that has this id, or an order with it. `None` if there is none.
    pub async fn take(&self, id: &str) -> Result<Option<HeldDeadLetter>, QueueError> {
        let link = Link::open(&self.settings, "dead-letters").await?;
        let mut others = Vec::new();
        let mut found = None;
        while let Some(message) = self.get(&link).await? {
            let letter = DeadLetter::read(&message);
            let acker = message.delivery.acker;
            if letter.is_called(id) {
                found = Some((letter, acker));
                break;
            }
            others.push(acker);
        }
        for other in others {
            acknowledged(other.nack(BasicNackOptions { requeue: true, ..Default::default() })).await?;
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

/// A dead letter that this process holds. Dropped, it goes back to the queue.
pub struct HeldDeadLetter {
    /// The dead letter.
    pub letter: DeadLetter,
    acker: Acker,
    link: Link,
}

impl HeldDeadLetter {
    /// Removes it: its orders have ended, or are published again. A copy on the queue has to be ended too, which
    /// changes nothing.
    pub async fn done(self) -> Result<(), QueueError> {
        acknowledged(self.acker.ack(BasicAckOptions::default())).await?;
        self.link.close().await;
        Ok(())
    }

    /// Returns it to the queue.
    pub async fn put_back(self) {
        put_back(&self.link).await;
        self.link.close().await;
    }
}

/// Dead letters that this process holds. Dropped, they go back to the queue.
pub struct HeldDeadLetters {
    /// The dead letters, oldest first.
    pub letters: Vec<DeadLetter>,
    ackers: Vec<Acker>,
    link: Link,
}

impl HeldDeadLetters {
    /// Replaces dead letters that have several orders by one for each order. Splits up to ten per call, and starts no
    /// further one after this time; the rest, and those that failed, are left for the next call.
    pub async fn split_within(&self, by: &DeadLetters, time: Duration) -> Result<(), PublishError> {
        let (began, mut split) = (Instant::now(), 0);
        for (letter, acker) in self.letters.iter().zip(&self.ackers) {
            if let Ok(orders @ [_, _, ..]) = letter.orders.as_deref() {
                by.write_split(letter, orders).await?;
                split += 1;
                // If this fails the link is gone, and this dead letter and all others come back.
                let removed = acknowledged(acker.ack(BasicAckOptions::default())).await.unwrap_or(false);
                if !removed || split == SPLIT_AT_ONCE || began.elapsed() >= time {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns them to the queue.
    pub async fn put_back(self) {
        put_back(&self.link).await;
        self.link.close().await;
    }
}

/// Returns everything that this link holds. On an error the broker does it when the link ends.
async fn put_back(link: &Link) {
    let all = BasicNackOptions { multiple: true, requeue: true };
    let _ = acknowledged(link.channel.basic_nack(0, all)).await;
}
