//! The order log: a stream that keeps every published order and every later change for as long as the configuration
//! says; reading removes nothing. It serves to bring a database restored from a backup up to date, and to rebuild a
//! gate that Redis lost.
//!
//! A stream does not say where it ends, so a reader writes a mark and reads up to it. That way it reads everything that
//! was confirmed before it started, and a broker that takes no writes cannot pass for an empty log.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};

use super::link::{Link, acknowledged};
use super::topology::Names;
use super::{PublishError, Publisher, QueueError, QueueSettings, Unreadable, headers, message};
use crate::domain::{Entry, Millis, Place, SaleId};

/// Messages that the broker sends ahead of their acks.
const PREFETCH: u16 = 1_000;

/// How often the end of the log is marked and a consumer opened before reading fails.
const READ_TRIES: u32 = 3;

/// Where reading starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFrom {
    /// At the oldest message that the log keeps.
    Head,
    /// At messages published at this time or later; some older ones may come first.
    Time(Millis),
    /// At the message with this [`LogMessage::offset`].
    Offset(u64),
}

/// One message of the log.
#[derive(Debug, Clone)]
pub struct LogMessage {
    /// Its place, unique as long as the stream is not deleted.
    pub offset: u64,
    /// When it was published, to the second, by its publisher's clock.
    pub at: Option<Millis>,
    /// Its entries. One that this build cannot read hides no other.
    pub entries: Vec<Result<Entry, Unreadable>>,
    /// How far the database had come with their sales, at least.
    pub places: BTreeMap<SaleId, Place>,
}

/// The first message that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHead {
    /// Its place. Above 0 at the head of the log, older messages have been deleted.
    pub offset: u64,
    /// When it was published, to the second.
    pub at: Option<Millis>,
}

/// A handle to the order log. Cheap to clone.
#[derive(Clone)]
pub struct OrderLog {
    settings: QueueSettings,
    publisher: Publisher,
}

/// Reads the log up to the mark that was written when reading started.
pub struct LogReader {
    settings: QueueSettings,
    /// Where the next message is expected.
    from: LogFrom,
    /// `None` after an error: the next call reconnects.
    open: Option<Open>,
    mark: String,
    first: Option<LogHead>,
}

struct Open {
    link: Link,
    stream: lapin::Consumer,
    unacknowledged: u16,
}

impl OrderLog {
    /// Must be called inside a tokio runtime. Does not wait for the broker.
    pub fn open(settings: QueueSettings) -> Self {
        Self { publisher: Publisher::open(settings.clone()), settings }
    }

    /// The same with an existing publisher.
    pub fn with(settings: QueueSettings, publisher: Publisher) -> Self {
        Self { settings, publisher }
    }

    /// Whether the broker is available, as far as this process knows.
    pub fn is_up(&self) -> bool {
        self.publisher.is_up()
    }

    /// Whether the broker is available within this time: a process that has just started has to connect.
    pub async fn is_up_within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.publisher.wait_until_up()).await.is_ok()
    }

    /// Fails while the broker is unavailable, as [`OrderLog::append`] then would.
    pub fn ensure_up(&self) -> Result<(), QueueError> {
        if self.is_up() { Ok(()) } else { Err(QueueError(PublishError::Away.to_string())) }
    }

    /// On `Ok` the log has these entries, and witnesses these places of the database. May be repeated: of two entries
    /// for the same thing, readers use the higher version, and of two places the higher one.
    pub async fn append(
        &self,
        entries: &[Entry],
        places: &BTreeMap<SaleId, Place>,
    ) -> Result<(), QueueError> {
        let appended = self.publisher.log(uuid::Uuid::new_v4().to_string(), entries, places).await;
        appended.map_err(|error| QueueError(error.to_string()))
    }

    /// The same, for a caller that cannot wait longer than `limit` for the confirm. On an error the log may have the
    /// entries all the same.
    pub async fn append_within(
        &self,
        limit: Duration,
        entries: &[Entry],
        places: &BTreeMap<SaleId, Place>,
    ) -> Result<(), QueueError> {
        let late = |_| Err(QueueError(format!("no confirm of the order log within {limit:?}")));
        tokio::time::timeout(limit, self.append(entries, places)).await.unwrap_or_else(late)
    }

    /// Starts reading. Everything that was confirmed to its publisher before this call is read.
    pub async fn read(&self, from: LogFrom) -> Result<LogReader, QueueError> {
        let mut tries = 1;
        loop {
            // A process that has just started gets time to connect, and one that has lost the broker.
            let up = tokio::time::timeout(self.settings.timeout, self.publisher.wait_until_up());
            up.await
                .map_err(|_| QueueError("the broker is unavailable: the order log cannot be read".into()))?;
            match self.mark_and_consume(from).await {
                // A broker that is busy, or that has just declared the log again, may need a moment.
                Err(error) if tries < READ_TRIES => {
                    tracing::debug!(%error, "reading the order log is tried again");
                    tries += 1;
                }
                opened => return opened,
            }
        }
    }

    async fn mark_and_consume(&self, from: LogFrom) -> Result<LogReader, QueueError> {
        let mark = format!("mark-{}", uuid::Uuid::new_v4());
        let marked = self.publisher.log(mark.clone(), &[], &BTreeMap::new()).await;
        marked.map_err(|error| QueueError(format!("marking the end of the order log: {error}")))?;
        let open = Some(Open::consume(&self.settings, from).await?);
        Ok(LogReader { settings: self.settings.clone(), from, open, mark, first: None })
    }

    /// The first message of the log.
    pub async fn head(&self) -> Result<LogHead, QueueError> {
        let mut reader = self.read(LogFrom::Head).await?;
        reader.next().await?;
        let head = reader.first;
        reader.close().await;
        // There is at least the mark.
        head.ok_or_else(|| QueueError("the order log has no beginning".into()))
    }
}

impl Open {
    async fn consume(settings: &QueueSettings, from: LogFrom) -> Result<Self, QueueError> {
        let log = Names::new(&settings.prefix).log;
        let mut arguments = FieldTable::default();
        arguments.insert("x-stream-offset".into(), offset(from));
        let mut opening = Link::opening(settings, "log", |channel| async move {
            channel.basic_qos(PREFETCH, BasicQosOptions { global: false }).await?;
            let options = BasicConsumeOptions::default();
            Ok(channel.basic_consume(log.as_str().into(), "".into(), options, arguments).await?)
        });
        let (link, stream) = opening.done().await?;
        Ok(Self { link, stream, unacknowledged: 0 })
    }

    async fn delivery(&mut self, timeout: Duration) -> Result<lapin::message::Delivery, QueueError> {
        let Ok(next) = tokio::time::timeout(timeout, self.stream.next()).await else {
            return Err(QueueError(format!("the order log said nothing for {timeout:?}")));
        };
        let next = next.ok_or_else(|| QueueError("the broker ended the reading of the order log".into()));
        let delivery = next??;
        // To the broker an ack is only a request for more: it deletes nothing from a stream.
        self.unacknowledged += 1;
        if self.unacknowledged == PREFETCH / 4 {
            self.unacknowledged = 0;
            acknowledged(delivery.acker.ack(BasicAckOptions { multiple: true })).await?;
        }
        Ok(delivery)
    }
}

fn offset(from: LogFrom) -> AMQPValue {
    match from {
        LogFrom::Head => AMQPValue::LongString("first".into()),
        LogFrom::Time(at) => AMQPValue::Timestamp(u64::try_from(at.0 / 1000).unwrap_or(0)),
        LogFrom::Offset(offset) => AMQPValue::LongLongInt(i64::try_from(offset).unwrap_or(i64::MAX)),
    }
}

impl LogReader {
    /// The next message; `None` at the point where the log ended when reading started. May be called again after an
    /// error: it reconnects and continues after the last message.
    pub async fn next(&mut self) -> Result<Option<LogMessage>, QueueError> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => Open::consume(&self.settings, self.from).await?,
            };
            let delivery = open.delivery(self.settings.timeout).await?;
            let properties = &delivery.properties;
            let offset = headers::count(properties.headers().as_ref(), headers::STREAM_OFFSET);
            let offset = offset.ok_or_else(|| QueueError("a message of the log without an offset".into()))?;
            let at = properties.timestamp().and_then(|seconds| i64::try_from(seconds).ok());
            let at = at.map(|seconds| Millis(seconds * 1000));
            self.first.get_or_insert(LogHead { offset, at });
            (self.from, self.open) = (LogFrom::Offset(offset + 1), Some(open));
            let id = properties.message_id().as_ref().map(|id| id.as_str()).unwrap_or_default();
            if id == self.mark {
                return Ok(None);
            }
            if id.starts_with("mark-") {
                continue;
            }
            let message::Read { entries, places } = message::read_logged(&delivery.data);
            return Ok(Some(LogMessage { offset, at, entries, places }));
        }
    }

    /// Closes the connection.
    pub async fn close(self) {
        if let Some(open) = self.open {
            open.link.close().await;
        }
    }
}
