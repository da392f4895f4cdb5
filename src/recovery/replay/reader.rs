//! Reads entries from the order log, or from a file with one entry per line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};

use super::error::ReplayError;
use super::order_states::HIGHEST_VERSION;
use super::request::{Filter, Source};
use crate::domain::{Entry, Invalid, MAX_QUANTITY, OrderStatus, Place, SaleId};
use crate::queue::{LogFrom, LogMessage, LogReader, OrderLog, Unreadable};
use crate::store::PaymentState;

/// One record of a source, with its position.
pub(super) struct Record {
    /// An offset in the log, or a line of the file.
    pub(super) position: u64,
    pub(super) entries: Vec<Result<Entry, EntryError>>,
    /// Places of the database that the record witnesses.
    pub(super) places: BTreeMap<SaleId, Place>,
}

/// Why an entry is not restored. It is counted as malformed and listed with its position; the replay continues with
/// the others.
#[derive(Debug, thiserror::Error)]
pub(super) enum EntryError {
    /// This build cannot read a message of the log.
    #[error(transparent)]
    Message(#[from] Unreadable),
    /// This build cannot read a line of the file.
    #[error(transparent)]
    Line(#[from] serde_json::Error),
    /// The terms of a sale break a rule.
    #[error(transparent)]
    Terms(#[from] Invalid),
    /// A value that no build writes.
    #[error("{what} {value}")]
    Impossible { what: &'static str, value: String },
}

impl EntryError {
    fn impossible(what: &'static str, value: String) -> Result<(), Self> {
        Err(Self::Impossible { what, value })
    }
}

/// An open source.
pub(super) enum EntryReader {
    Log(Box<LogReader>),
    File { path: PathBuf, lines: Lines<BufReader<tokio::fs::File>>, line: u64 },
}

/// The precision of the log's times, which are in whole seconds.
const PRECISION: Duration = Duration::from_secs(1);

impl EntryReader {
    /// Opens the source at the position where the filter begins.
    pub(super) async fn open(source: &Source, log: &OrderLog, filter: &Filter) -> Result<Self, ReplayError> {
        if let Source::File(path) = source {
            // A pipe could not be read several times.
            let there = std::fs::metadata(path).map_err(|error| ReplayError::File(path.clone(), error))?;
            if !there.is_file() {
                return Err(ReplayError::Usage(format!("{}: it must be a file", path.display())));
            }
            let file = tokio::fs::File::open(path).await;
            let file = file.map_err(|error| ReplayError::File(path.clone(), error))?;
            return Ok(Self::File { path: path.clone(), lines: BufReader::new(file).lines(), line: 0 });
        }
        let from = match (filter.offset, filter.since) {
            (Some(offset), _) => LogFrom::Offset(offset),
            (None, Some(since)) => LogFrom::Time(since.minus(PRECISION)),
            (None, None) => LogFrom::Head,
        };
        Ok(Self::Log(Box::new(log.read(from).await?)))
    }

    /// The next record within the filter's times; `None` at the end. May be called again after a broker error.
    pub(super) async fn next(&mut self, filter: &Filter) -> Result<Option<Record>, ReplayError> {
        match self {
            Self::Log(reader) => next_message(reader, filter).await,
            Self::File { path, lines, line } => loop {
                let text = lines.next_line().await;
                let Some(text) = text.map_err(|error| unreadable(path, *line, error))? else {
                    return Ok(None);
                };
                *line += 1;
                if text.trim().is_empty() {
                    continue;
                }
                let entry = serde_json::from_str(&text).map_err(EntryError::Line).and_then(checked);
                // A line does not say when it was written; the order says when it was accepted.
                let at = entry.as_ref().ok().and_then(Entry::order).map(|order| order.accepted_at);
                if at.is_none_or(|at| filter.passes_time(at)) {
                    return Ok(Some(Record {
                        position: *line,
                        entries: vec![entry],
                        places: BTreeMap::new(),
                    }));
                }
            },
        }
    }

    pub(super) async fn close(self) {
        if let Self::Log(reader) = self {
            reader.close().await;
        }
    }
}

async fn next_message(reader: &mut LogReader, filter: &Filter) -> Result<Option<Record>, ReplayError> {
    while let Some(message) = reader.next().await? {
        // If the second is in doubt, the message is taken: taking it twice does no harm.
        let in_time = message.at.is_none_or(|at| {
            filter.since.is_none_or(|since| at.plus(PRECISION) > since)
                && filter.until.is_none_or(|until| at <= until)
        });
        if in_time {
            let LogMessage { offset: position, entries, places, .. } = message;
            let entries = entries.into_iter();
            let entries = entries.map(|entry| entry.map_err(EntryError::Message).and_then(checked)).collect();
            return Ok(Some(Record { position, entries, places }));
        }
    }
    Ok(None)
}

/// Refuses values that no build writes, before any of them reaches a row.
fn checked(entry: Entry) -> Result<Entry, EntryError> {
    let quantity = |quantity: u32| match (1..=MAX_QUANTITY).contains(&quantity) {
        true => Ok(()),
        false => EntryError::impossible("a quantity of", quantity.to_string()),
    };
    let one_of = |what, text: &str, known: &[&str]| match known.contains(&text) {
        true => Ok(()),
        false => EntryError::impossible(what, format!("{text:?}")),
    };
    match &entry {
        Entry::Accepted(order) => quantity(order.quantity)?,
        Entry::Order(entry)
            if entry.status == OrderStatus::Accepted || !(1..=HIGHEST_VERSION).contains(&entry.version) =>
        {
            let value = format!("{} at version {}", entry.status, entry.version);
            EntryError::impossible("a row that is", value)?;
        }
        Entry::Order(entry) => quantity(entry.order.quantity)?,
        Entry::Sale(entry) => entry.to_sale().check()?,
        Entry::Act(entry) => one_of("an act that is", &entry.state, &["pending", "done", "refused"])?,
        Entry::Payment(entry) => {
            one_of("a payment that is", &entry.state, &PaymentState::ALL.map(PaymentState::as_str))?;
            one_of("an event", &entry.event, &["paid", "refunded"])?;
        }
    }
    Ok(entry)
}

fn unreadable(path: &Path, line: u64, error: std::io::Error) -> ReplayError {
    let error = std::io::Error::new(error.kind(), format!("line {}: {error}", line + 1));
    ReplayError::File(path.to_owned(), error)
}
