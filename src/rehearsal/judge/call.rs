//! What buyers asked and what they heard.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One request of a buyer, or of the payment provider, with its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// When it was sent, by the clock of the crowd: milliseconds since 1970, rounded down.
    pub from_ms: i64,
    /// When its answer was there, rounded up.
    pub to_ms: i64,
    /// The buyer who sent it; for a payment, the buyer whose order it pays.
    pub user: String,
    /// What was asked.
    pub ask: Ask,
    /// What was answered.
    pub answer: Answer,
}

/// What a call asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Units of an item.
    Buy {
        /// The idempotency key.
        key: String,
        /// The item.
        sku: String,
        /// The units.
        quantity: i64,
    },
    /// The state of an order.
    Read {
        /// The order.
        order: Uuid,
    },
    /// Every state that an order reaches, by a stream of events. A call for each event, from the one before.
    Follow {
        /// The order.
        order: Uuid,
    },
    /// The end of an order.
    Cancel {
        /// The order.
        order: Uuid,
    },
    /// That a payment is recorded.
    Pay {
        /// The order.
        order: Uuid,
        /// The provider's event.
        event: String,
    },
}

impl Ask {
    /// The order that it names.
    pub fn order(&self) -> Option<Uuid> {
        match self {
            Self::Buy { .. } => None,
            Self::Read { order }
            | Self::Follow { order }
            | Self::Cancel { order }
            | Self::Pay { order, .. } => Some(*order),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The HTTP status; `None` if there was no answer.
    pub status: Option<u16>,
    /// `accepted`, `confirmed` or `repeat` to a buyer who got an order; the state of an order or a payment; a code of
    /// the contract; `http_` and the status; or `unanswered`.
    pub code: String,
    /// The order that it names.
    pub order: Option<Uuid>,
    /// The order that a late payment took instead.
    pub new_order: Option<Uuid>,
    /// Whether it says that the broker or the database holds the order, and not Redis alone.
    pub is_durable: bool,
}

impl Answer {
    /// Whether it gives an order to a buyer who asked for one.
    pub fn gives_order(&self) -> bool {
        matches!(self.code.as_str(), "accepted" | "confirmed" | "repeat")
    }

    /// Whether it was carried out.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }

    /// Whether the caller cannot know what became of the request.
    pub fn is_unknown(&self) -> bool {
        self.status.is_none_or(|status| status >= 500)
            && !matches!(self.code.as_str(), "gate_unavailable" | "overloaded" | "sale_paused")
    }
}

/// Where calls are recorded. Clones share one history.
#[derive(Clone, Default)]
pub struct History {
    /// `None` if nothing is recorded.
    calls: Option<Arc<Mutex<Vec<Call>>>>,
}

impl History {
    /// Records calls.
    pub fn recorded() -> Self {
        Self { calls: Some(Arc::default()) }
    }

    /// Records nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a call that began at `from_ms` and ends now.
    pub fn add(&self, from_ms: i64, user: &str, ask: Ask, answer: Answer) {
        if let Some(mut calls) = self.lock() {
            calls.push(Call { from_ms, to_ms: now_ms() + 1, user: user.to_owned(), ask, answer });
        }
    }

    /// Whether calls are recorded.
    pub fn is_recorded(&self) -> bool {
        self.calls.is_some()
    }

    /// Removes and returns all calls.
    pub fn take(&self) -> Vec<Call> {
        self.lock().map(|mut calls| std::mem::take(&mut *calls)).unwrap_or_default()
    }

    fn lock(&self) -> Option<MutexGuard<'_, Vec<Call>>> {
        self.calls.as_ref().map(|calls| calls.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// This host's clock. The private servers of a drill run on the same host.
pub(in crate::rehearsal) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
