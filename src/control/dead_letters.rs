//! What an operator does about dead letters: have them processed again, or end their orders. An
//! order on the dead-letter queue was accepted, so it must have an end that its buyer can read.

use crate::gate::{Gate, GateError};
use crate::queue::{DeadLetter, DeadLetters, HeldDeadLetter, PublishError, QueueError};
use crate::settlement::{SettlementError, settle_order};
use crate::store::{Recorded, Store, StoreError};

/// Dead letters that are shown at once.
const MOST: usize = 1_000;

/// How often a letter is looked for: another who looks at the queue holds it for a moment.
const LOOKS: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    #[error("there is no dead letter {0}")]
    NotFound(String),
    /// Nothing was changed; the letter is where it was.
    #[error("{0} cannot be read by this build ({1}); use the build that wrote it")]
    Unreadable(String, String),
    #[error("the broker: {0}")]
    Queue(#[from] QueueError),
    #[error("the broker: {0}")]
    Publish(#[from] PublishError),
    /// The row may be committed; doing it again goes on.
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<SettlementError> for DeadLetterError {
    fn from(error: SettlementError) -> Self {
        match error {
            SettlementError::Gate(error) => Self::Gate(error),
            SettlementError::Store(error) => Self::Store(error),
        }
    }
}

/// A letter as it is shown, in the admin API and by the command.
pub fn dead_letter_json(letter: &DeadLetter, whole: bool) -> serde_json::Value {
    let mut shown = serde_json::json!({
        "id": letter.id,
        "reason": letter.reason.to_string(),
        "attempts": letter.attempts,
        "replays": letter.replays,
        "first_error": letter.first_error,
        "last_error": letter.last_error,
        "since": letter.since,
        "orders": letter.orders.as_ref().ok(),
        "unreadable": letter.orders.as_ref().err().map(ToString::to_string),
    });
    if whole {
        shown["payload"] = String::from_utf8_lossy(&letter.payload).into();
    }
    shown
}

/// What became of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadLetterEnd {
    /// On its way to a worker again.
    Replayed,
    /// Its orders are `failed`, and their units are on sale again.
    Failed,
    /// All its orders had ended before; they were left as they are.
    EndedBefore,
    /// It could not be read and is gone. Orders in it that were accepted are in the outbox, and
    /// are published again from there.
    Discarded,
}

impl DeadLetterEnd {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Failed => "failed",
            Self::EndedBefore => "ended_before",
            Self::Discarded => "discarded",
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct DeadLetterActs {
    letters: DeadLetters,
    gate: Gate,
    store: Store,
}

impl DeadLetterActs {
    pub fn new(letters: DeadLetters, gate: Gate, store: Store) -> Self {
        Self { letters, gate, store }
    }

    /// The oldest first, a thousand at most.
    pub async fn list(&self) -> Result<Vec<DeadLetter>, DeadLetterError> {
        Ok(self.letters.list(MOST).await?)
    }

    pub async fn show(&self, id: &str) -> Result<DeadLetter, DeadLetterError> {
        let held = self.take(id).await?;
        let letter = held.letter.clone();
        held.put_back().await;
        Ok(letter)
    }

    /// Gives the letter's orders to the workers again. In this order: published and confirmed, the
    /// sweep told, the letter removed. A crash in between leaves both, and a worker recognises the
    /// order that it has seen.
    pub async fn replay(&self, id: &str) -> Result<DeadLetterEnd, DeadLetterError> {
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

    /// Ends the letter's orders. In this order: the failed rows committed, the gate put right, the
    /// letter removed. May be repeated until it succeeds.
    pub async fn fail(&self, id: &str) -> Result<DeadLetterEnd, DeadLetterError> {
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
                    Recorded::Confirmed | Recorded::Stale => None,
                };
                settle_order(&self.gate, &self.store, order, failure).await?;
            }
            Ok(done)
        };
        end(failed.await, held).await
    }

    async fn take(&self, id: &str) -> Result<HeldDeadLetter, DeadLetterError> {
        for _ in 0..LOOKS {
            match self.letters.take(id).await? {
                // What is decided about one order must not happen to those beside it.
                Some(held) if held.letter.orders.as_ref().is_ok_and(|orders| orders.len() > 1) => {
                    self.letters.split(held).await?;
                }
                Some(held) => return Ok(held),
                None => {}
            }
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        Err(DeadLetterError::NotFound(id.to_owned()))
    }
}

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
