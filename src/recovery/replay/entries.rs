//! Reading entries: from the order log, or from a file with one on each line.

use std::path::{Path, PathBuf};

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};

use super::{Filter, ReplayError, Source};
use crate::domain::{Entry, MAX_QUANTITY, Millis, OrderStatus};
use crate::queue::{LogFrom, LogReader, OrderLog};
use crate::store::PaymentState;

/// What stands at one place of a source.
pub(super) struct Piece {
    /// Where it stands: an offset, or a line.
    pub(super) position: u64,
    pub(super) entries: Vec<Result<Entry, String>>,
}

pub(super) enum Entries {
    Log(Box<LogReader>),
    File(PathBuf, Lines<BufReader<tokio::fs::File>>, u64),
}

/// The stamps on messages are of whole seconds, and a stream is searched by its parts.
const STAMP_MS: i64 = 1_000;

impl Entries {
    /// From where the filter begins.
    pub(super) async fn open(source: &Source, log: &OrderLog, filter: &Filter) -> Result<Self, ReplayError> {
        if let Source::File(path) = source {
            // It is read several times.
            let there = std::fs::metadata(path).map_err(|error| ReplayError::File(path.clone(), error))?;
            if !there.is_file() {
                return Err(ReplayError::Usage(format!("{}: it must be a file", path.display())));
            }
            let file = tokio::fs::File::open(path).await;
            let file = file.map_err(|error| ReplayError::File(path.clone(), error))?;
            return Ok(Self::File(path.clone(), BufReader::new(file).lines(), 0));
        }
        let from = match (filter.offset, filter.since) {
            (Some(offset), _) => LogFrom::Offset(offset),
            (None, Some(since)) => LogFrom::Time(Millis(since.0 - STAMP_MS)),
            (None, None) => LogFrom::Head,
        };
        Ok(Self::Log(Box::new(log.read(from).await?)))
    }

    /// After an error of the broker it may be called again.
    pub(super) async fn next(&mut self, filter: &Filter) -> Result<Option<Piece>, ReplayError> {
        match self {
            Self::Log(reader) => loop {
                let Some(message) = reader.next().await? else { return Ok(None) };
                // To the second: what is in doubt is taken, since taking it twice does no harm.
                let in_time = message.at.is_none_or(|at| {
                    filter.since.is_none_or(|since| at.0 + STAMP_MS > since.0)
                        && filter.until.is_none_or(|until| at <= until)
                });
                if !in_time {
                    continue;
                }
                let entries = message.entries.into_iter();
                return Ok(Some(Piece {
                    position: message.offset,
                    entries: entries
                        .map(|entry| entry.map_err(|error| error.to_string()).and_then(judged))
                        .collect(),
                }));
            },
            Self::File(path, lines, position) => loop {
                let line = lines.next_line().await;
                let Some(line) = line.map_err(|error| unreadable(path, *position, error))? else {
                    return Ok(None);
                };
                *position += 1;
                if line.trim().is_empty() {
                    continue;
                }
                let entry = serde_json::from_str(&line).map_err(|error| error.to_string()).and_then(judged);
                // By when the order was accepted: a line does not say when it was written.
                let at = entry.as_ref().ok().and_then(Entry::order).map(|order| order.accepted_at);
                if at.is_some_and(|at| !filter.takes_time(at)) {
                    continue;
                }
                return Ok(Some(Piece { position: *position, entries: vec![entry] }));
            },
        }
    }

    pub(super) async fn close(self) {
        if let Self::Log(reader) = self {
            reader.close().await;
        }
    }
}

/// What could not be in the log is in no row either.
fn judged(entry: Entry) -> Result<Entry, String> {
    let quantity = |quantity: u32| match (1..=MAX_QUANTITY).contains(&quantity) {
        true => Ok(()),
        false => Err(format!("a quantity of {quantity}")),
    };
    let known = |what: &str, text: &str, known: &[&str]| match known.contains(&text) {
        true => Ok(()),
        false => Err(format!("{what} {text:?}")),
    };
    match &entry {
        Entry::Accepted(order) => quantity(order.quantity)?,
        Entry::Order(entry) if entry.status == OrderStatus::Accepted || entry.version < 1 => {
            return Err(format!("a row that is {} at version {}", entry.status, entry.version));
        }
        Entry::Order(entry) => quantity(entry.order.quantity)?,
        Entry::Sale(entry) => entry.to_sale().check().map_err(|error| error.to_string())?,
        Entry::Act(entry) => known("an act that is", &entry.state, &["pending", "done", "refused"])?,
        Entry::Payment(entry) => {
            known("a payment that is", &entry.state, &PaymentState::ALL.map(PaymentState::as_str))?;
            known("an event", &entry.event, &["paid", "refunded"])?;
        }
    }
    Ok(entry)
}

fn unreadable(path: &Path, position: u64, error: std::io::Error) -> ReplayError {
    let error = std::io::Error::new(error.kind(), format!("line {}: {error}", position + 1));
    ReplayError::File(path.to_owned(), error)
}
