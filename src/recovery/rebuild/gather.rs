//! What is known of orders without a row: the outbox, the order log, the dead-letter queue.

use std::collections::HashMap;

use super::{Rebuild, RebuildError, Rebuilding};
use crate::domain::{CLOCK_SKEW, Entry, Millis, Number, Order, OrderId};
use crate::fault::fault;
use crate::queue::LogFrom;

/// Dead letters that are looked at.
const LETTERS: usize = 10_000;

/// What outbox, log and dead-letter queue know of a sale.
#[derive(Default)]
pub struct Gathered {
    /// Orders that were accepted. `true`: it lies on the dead-letter queue.
    pub(super) accepted: HashMap<OrderId, (Order, bool)>,
    /// Versions of rows that the log has seen.
    pub(super) versions: HashMap<OrderId, i32>,
    /// The highest number that was given.
    pub(super) highest: Number,
    /// The log remembers nothing older.
    pub begins_at: Option<Millis>,
    /// Entries and letters that this build cannot read.
    pub(super) unreadable: usize,
}

impl Rebuild {
    /// Reads what knows of orders without a row. Everything that was accepted before the sale was frozen
    /// is in one of them, or has a row when the database is read afterwards.
    pub async fn gather(&self, rebuilding: &Rebuilding) -> Result<Gathered, RebuildError> {
        let sale = &rebuilding.sale;
        let mut gathered = Gathered::default();
        for ticket in self.gate.in_flight(sale).await? {
            gathered.highest = gathered.highest.max(ticket.order.number);
            gathered.accepted.insert(ticket.order.id, (ticket.order, ticket.parked));
        }
        let created = self.row(sale).await?.created_at;
        let mut reader = self.log.read(LogFrom::Time(created.minus(CLOCK_SKEW))).await?;
        while let Some(message) = reader.next().await? {
            for entry in message.entries {
                let Ok(entry) = entry else {
                    gathered.unreadable += 1;
                    continue;
                };
                match entry {
                    entry if entry.sale() != sale => {}
                    Entry::Accepted(order) => {
                        gathered.highest = gathered.highest.max(order.number);
                        gathered.accepted.entry(order.id).or_insert((order, false));
                    }
                    Entry::Order(entry) => {
                        gathered.highest = gathered.highest.max(entry.order.number);
                        let version = gathered.versions.entry(entry.order.id).or_insert(0);
                        *version = entry.version.max(*version);
                    }
                    Entry::Sale(entry) => gathered.highest = gathered.highest.max(entry.number),
                    Entry::Act(_) | Entry::Payment(_) => {}
                }
            }
        }
        // That the sale was created stands in the log, unless that was forgotten, or the log wiped.
        let first = reader.first().and_then(|first| first.at);
        gathered.begins_at = first.filter(|at| *at > created.plus(CLOCK_SKEW));
        reader.close().await;
        for letter in self.dead_letters.list(LETTERS).await? {
            gathered.unreadable += usize::from(letter.orders.is_err());
            for order in letter.orders.into_iter().flatten().filter(|order| order.sale == *sale) {
                gathered.highest = gathered.highest.max(order.number);
                gathered.accepted.insert(order.id, (order, true));
            }
        }
        fault!("rebuild.gathered", return Err(crate::gate::GateError::Unavailable("injected".into()).into()));
        Ok(gathered)
    }
}
