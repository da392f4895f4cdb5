//! The request for a replay.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::ReplayError;
use crate::domain::{Entry, Millis, Order, OrderId, SaleId, UserId};

/// Where the replayed orders come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The gate's outbox.
    Outbox,
    /// The dead-letter queue.
    DeadLetters,
    /// The order log.
    Log,
    /// A file of entries, one per line. It is read several times, so it must be a regular file.
    File(PathBuf),
}

impl Source {
    /// The name in the command line, in the list of runs, and of the lease.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::DeadLetters => "dead-letters",
            Self::Log => "log",
            Self::File(_) => "file",
        }
    }
}

/// Which part of the source is replayed. A filter that is `None` lets everything pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// One sale.
    pub sale: Option<SaleId>,
    /// One user's orders.
    pub user: Option<UserId>,
    /// One order.
    pub order: Option<OrderId>,
    /// Dead letters parked for this reason.
    pub reason: Option<String>,
    /// At this time or later: published (log), parked (dead letters), accepted (outbox, file).
    pub since: Option<Millis>,
    /// For the log, instead of a time: start at this message.
    #[serde(default)]
    pub offset: Option<u64>,
    /// At this time or earlier; the same times as for `since`.
    pub until: Option<Millis>,
    /// At most this many orders.
    pub limit: Option<u64>,
}

impl Filter {
    pub(super) fn passes(&self, order: &Order) -> bool {
        self.sale.as_ref().is_none_or(|sale| *sale == order.sale)
            && self.user.as_ref().is_none_or(|user| *user == order.user)
            && self.order.is_none_or(|id| id == order.id)
    }

    pub(super) fn passes_time(&self, at: Millis) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at <= until)
    }

    /// Entries that are not about one order pass only if the filter names neither an order nor a user.
    pub(super) fn passes_entry(&self, entry: &Entry) -> bool {
        match entry.order() {
            Some(order) => self.passes(order),
            None => {
                self.user.is_none()
                    && self.order.is_none()
                    && self.sale.as_ref().is_none_or(|sale| sale == entry.sale())
            }
        }
    }
}

/// The request for a replay. Stored with the run, so that it can be resumed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayRequest {
    /// Where the orders come from.
    pub source: Source,
    /// Which of them are replayed.
    pub filter: Filter,
    /// The most orders per second.
    pub rate: Option<u32>,
    /// Nothing is published while more orders than this wait in the queue.
    pub max_queue: u32,
    /// After a batch that takes longer than this many milliseconds, the replay pauses for the same time.
    pub max_latency_ms: u64,
    /// A dead letter that was already replayed this often stays on the queue.
    pub max_replays: u32,
    /// Declare the database up to date after a replay of the log, even though the log does not reach back to its place
    /// or orders are left: what is missing then is lost.
    #[serde(default)]
    pub accept_loss: bool,
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
            return usage("--offset applies to the log alone");
        }
        if self.accept_loss && self.source != Source::Log {
            return usage("--accept-loss applies to the log alone");
        }
        if self.accept_loss && !filter.is_whole() {
            return usage(
                "--accept-loss applies to a replay of the whole log: it declares every sale up to date",
            );
        }
        if filter.reason.is_some() && self.source != Source::DeadLetters {
            return usage("--reason applies to dead letters alone");
        }
        Ok(())
    }
}
