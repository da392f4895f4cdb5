//! What a replay is asked for.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ReplayError;
use crate::domain::{Entry, Millis, Order, OrderId, SaleId, UserId};

/// Where what is replayed comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    Outbox,
    DeadLetters,
    Log,
    File(PathBuf),
}

impl Source {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::DeadLetters => "dead-letters",
            Self::Log => "log",
            Self::File(_) => "file",
        }
    }
}

/// What of it is replayed; nothing named is everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    pub sale: Option<SaleId>,
    pub user: Option<UserId>,
    pub order: Option<OrderId>,
    /// Of dead letters.
    pub reason: Option<String>,
    /// Of the log: published then or later. Of dead letters: given up. Of the others: accepted.
    pub since: Option<Millis>,
    /// Of the log, in the place of a time: from this message on.
    #[serde(default)]
    pub offset: Option<u64>,
    pub until: Option<Millis>,
    /// Orders at most.
    pub limit: Option<u64>,
}

impl Filter {
    pub(super) fn takes(&self, order: &Order) -> bool {
        self.sale.as_ref().is_none_or(|sale| *sale == order.sale)
            && self.user.as_ref().is_none_or(|user| *user == order.user)
            && self.order.is_none_or(|id| id == order.id)
    }

    pub(super) fn takes_time(&self, at: Millis) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at <= until)
    }

    /// What is not about one order counts where no order is asked for.
    pub(super) fn takes_entry(&self, entry: &Entry) -> bool {
        match entry.order() {
            Some(order) => self.takes(order),
            None => {
                self.user.is_none()
                    && self.order.is_none()
                    && self.sale.as_ref().is_none_or(|sale| sale == entry.sale())
            }
        }
    }
}

/// What a replay is asked for. Kept with the run, so that it can be gone on with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayRequest {
    pub source: Source,
    pub filter: Filter,
    /// Orders per second, at most.
    pub rate: Option<u32>,
    /// While more orders wait in the queue than this, nothing is published.
    pub max_queue: u32,
    /// A batch that took longer is followed by a pause as long.
    pub max_latency_ms: u64,
    /// A dead letter that was replayed so often is left where it is.
    pub max_replays: u32,
}

impl ReplayRequest {
    pub(super) fn check(&self) -> Result<(), ReplayError> {
        let filter = &self.filter;
        let usage = |text: &str| Err(ReplayError::Usage(text.to_owned()));
        if let (Some(since), Some(until)) = (filter.since, filter.until)
            && since > until
        {
            return usage("--since is later than --until");
        }
        if filter.since.is_some_and(|since| since > Millis::now()) {
            return usage("--since is in the future");
        }
        if filter.offset.is_some() && self.source != Source::Log {
            return usage("--offset is known of the log alone");
        }
        if filter.reason.is_some() && self.source != Source::DeadLetters {
            return usage("--reason is known of dead letters alone");
        }
        Ok(())
    }
}
