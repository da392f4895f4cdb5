//! What an operator can do about dead letters: replay them, or fail their orders. An order on the dead-letter queue
//! was accepted, so it must get an outcome that its buyer can read.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::operator_acts::recorded;
use crate::domain::{ActRequest, Millis, Order};
use crate::gate::{Gate, GateError};
use crate::queue::{DeadLetter, DeadLetters, HeldDeadLetter, PublishError, QueueError};
use crate::settlement::settlement_of;
use crate::store::{Recorded, Store, StoreError};

/// Dead letters in one listing.
const LISTED: usize = 1_000;

/// Attempts to find a dead letter: another reader of the queue may hold it for a moment.
const LOOKS: u32 = 3;

/// The pause between two attempts.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Why an act on a dead letter did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// No dead letter has this id.
    #[error("there is no dead letter {0}")]
    NotFound(String),
    /// Nothing has changed: the dead letter is still on its queue.
    #[error("this build cannot read {0} ({1}); use the build that wrote it")]
    Unreadable(String, String),
    /// The broker did not answer. The act may have been done: repeat it.
    #[error("the broker: {0}")]
    Queue(#[from] QueueError),
    /// The broker has not confirmed the replay. The orders may be on their way: repeat it.
    #[error("the broker: {0}")]
    Publish(#[from] PublishError),
    /// Redis failed. The rows may be committed: repeat the act.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The database failed. The rows may be committed: repeat the act.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A dead letter as JSON, for the admin API and the command line.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeadLetter")]
pub struct DeadLetterJson<'a> {
    /// The id of its first order, or of the message if it cannot be read.
    id: &'a str,
    /// Why it is a dead letter.
    reason: String,
    /// How often it was tried or delivered.
    attempts: u64,
    /// How often it was replayed and came back.
    replays: u32,
    /// The error of the first attempt.
    first_error: Option<&'a str>,
    /// The error of the last attempt.
    last_error: Option<&'a str>,
    /// When it became a dead letter, to the second.
    since: Option<Millis>,
    /// The orders that it carries; `null` if it cannot be read.
    orders: Option<&'a [Order]>,
    /// Why it cannot be read.
    unreadable: Option<String>,
    /// The message as text, where one dead letter is shown and not a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
}

impl<'a> DeadLetterJson<'a> {
    /// Without the payload, for a list.
    pub fn listed(letter: &'a DeadLetter) -> Self {
        Self {
            id: &letter.id,
            reason: letter.reason.to_string(),
            attempts: letter.attempts,
            replays: letter.replays,
            first_error: letter.first_error.as_deref(),
            last_error: letter.last_error.as_deref(),
            since: letter.since,
            orders: letter.orders.as_deref().ok(),
            unreadable: letter.orders.as_ref().err().map(ToString::to_string),
            payload: None,
        }
    }

    /// With the payload.
    pub fn whole(letter: &'a DeadLetter) -> Self {
        Self { payload: Some(String::from_utf8_lossy(&letter.payload).into_owned()), ..Self::listed(letter) }
    }
}

/// How an act on a dead letter ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterEnd {
    /// Its orders are on their way to a worker again.
    Replayed,
    /// Its orders are `failed`, and their units are on sale again.
    Failed,
    /// All its orders already had an outcome, and kept it.
    EndedBefore,
    /// It could not be read and was deleted. Its accepted orders are still in the outbox, and are published again
    /// from there.
    Discarded,
}

impl DeadLetterEnd {
    /// The word used in JSON and in the command's output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Failed => "failed",
            Self::EndedBefore => "ended_before",
            Self::Discarded => "discarded",
        }
    }
}

/// An operator's acts on dead letters. Cheap to clone.
#[derive(Clone)]
pub struct DeadLetterActs {
    letters: DeadLetters,
    gate: Gate,
    store: Store,
}

impl DeadLetterActs {
    /// Does not connect yet.
    pub fn new(letters: DeadLetters, gate: Gate, store: Store) -> Self {
        Self { letters, gate, store }
    }

    /// The oldest thousand dead letters, oldest first.
    pub async fn list(&self) -> Result<Vec<DeadLetter>, DeadLetterError> {
        Ok(self.letters.list(LISTED).await?)
    }

    /// One dead letter. It stays on the queue.
    pub async fn show(&self, id: &str) -> Result<DeadLetter, DeadLetterError> {
        let held = self.take(id).await?;
        let letter = held.letter.clone();
        held.put_back().await;
        Ok(letter)
    }

    /// Sends the dead letter's orders to the workers again. On `Ok` the broker has confirmed them. May be repeated.
    ///
    /// The order of steps: publish and await the confirm, clear the parked mark in the gate, remove the dead
    /// letter. A crash in between leaves both messages, and a worker recognises an order that it has seen.
    pub async fn replay(&self, id: &str, request: &ActRequest) -> Result<DeadLetterEnd, DeadLetterError> {
        let act = ("dead-letter replay", id);
        recorded(&self.store, act, request, self.publish_again(id), |end| end.as_str().to_owned()).await
    }

    /// As [`DeadLetterActs::replay`], for a replay run, which is recorded itself.
    pub async fn publish_again(&self, id: &str) -> Result<DeadLetterEnd, DeadLetterError> {
        let held = self.take(id).await?;
        let replayed = async {
            let orders = match &held.letter.orders {
                Ok(orders) => orders,
                Err(why) => return Err(DeadLetterError::Unreadable(id.to_owned(), why.to_string())),
            };
            self.letters.replay(&held.letter, orders).await?;
            for order in orders {
                self.gate.mark_replayed(&order.sale, &[order.id]).await?;
            }
            Ok(DeadLetterEnd::Replayed)
        };
        end(replayed.await, held).await
    }

    /// Fails the dead letter's orders. On `Ok` their rows are committed and their units are on sale again. May be
    /// repeated.
    ///
    /// The order of steps: commit the failed rows, settle them with the gate, remove the dead letter.
    pub async fn fail(&self, id: &str, request: &ActRequest) -> Result<DeadLetterEnd, DeadLetterError> {
        let act = ("dead-letter fail", id);
        recorded(&self.store, act, request, self.fail_orders(id), |end| end.as_str().to_owned()).await
    }

    async fn fail_orders(&self, id: &str) -> Result<DeadLetterEnd, DeadLetterError> {
        let held = self.take(id).await?;
        let failed = async {
            let Ok(orders) = &held.letter.orders else { return Ok(DeadLetterEnd::Discarded) };
            let mut done = DeadLetterEnd::EndedBefore;
            for order in orders {
                let failure = match self.store.give_up(order).await? {
                    Recorded::Failed(failure, _) => {
                        done = DeadLetterEnd::Failed;
                        Some(failure)
                    }
                    Recorded::Already(_, failure) => failure,
                    Recorded::Confirmed | Recorded::Stale | Recorded::Locked => None,
                };
                // If another order of its user replaced it, the sweep settles it under the user's lease.
                if let Some(settlement) = settlement_of(order, failure) {
                    self.gate.settle(&order.sale, &[settlement]).await?;
                }
            }
            Ok(done)
        };
        end(failed.await, held).await
    }

    async fn take(&self, id: &str) -> Result<HeldDeadLetter, DeadLetterError> {
        for _ in 0..LOOKS {
            match self.letters.take(id).await? {
                // An act on one order must not affect the others in its message.
                Some(held) if held.letter.orders.as_ref().is_ok_and(|orders| orders.len() > 1) => {
                    self.letters.split(held).await?;
                }
                Some(held) => return Ok(held),
                None => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(DeadLetterError::NotFound(id.to_owned()))
    }
}

/// Removes the dead letter after a success, or puts it back after an error.
async fn end(
    result: Result<DeadLetterEnd, DeadLetterError>,
    held: HeldDeadLetter,
) -> Result<DeadLetterEnd, DeadLetterError> {
    match result {
        Ok(end) => {
            held.done().await?;
            Ok(end)
        }
        Err(error) => {
            held.put_back().await;
            Err(error)
        }
    }
}
