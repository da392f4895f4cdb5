//! The order log: a stream that remembers every published order and every later change for as long as
//! the configuration says, whoever has read it. With it a database that was restored from a backup is
//! brought up to date, and a gate that Redis lost is rebuilt.
//!
//! A stream does not say where it ends. A reader writes a mark and reads up to it: so what was confirmed
//! before the reading began is read, and a broker that takes no writes does not pass for an empty log.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};

use super::link::{Link, within};
use super::topology::Names;
use super::{Publisher, QueueError, QueueSettings, Unreadable, dead_letters, message};
use crate::domain::{Entry, Millis};

/// Messages that the broker sends ahead.
const PREFETCH: u16 = 1_000;

/// From where a log is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFrom {
    /// From the oldest that is remembered.
    Head,
    /// What was published at this time or later; some older ones may come first.
    Time(Millis),
    /// A message, as [`LogMessage::offset`] numbers them.
    Offset(u64),
}

/// One message of the log.
#[derive(Debug, Clone)]
pub struct LogMessage {
    /// Its place; never given twice, as long as the stream is not deleted.
    pub offset: u64,
    /// When it was published, to the second, by its publisher's clock.
    pub at: Option<Millis>,
    pub entries: Vec<Result<Entry, Unreadable>>,
}

/// The first message that was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHead {
    /// Above 0 at the head of the log: something was forgotten.
    pub offset: u64,
    pub at: Option<Millis>,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct OrderLog {
    settings: QueueSettings,
    publisher: Publisher,
}

/// Reads the log up to the mark that was written when the reading began.
pub struct LogReader {
    settings: QueueSettings,
    /// Where the next message is looked for.
    from: LogFrom,
    /// `None` after an error: the next call opens another one.
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

    /// The same, with a publisher that is there already.
    pub fn with(settings: QueueSettings, publisher: Publisher) -> Self {
        Self { settings, publisher }
    }

    /// On `Ok` the log has these entries. May be repeated: readers count the higher version.
    pub async fn append(&self, entries: &[Entry]) -> Result<(), QueueError> {
        self.publisher.log(entries).await.map_err(|error| QueueError(error.to_string()))
    }

    /// Begins to read. What was confirmed to its publisher before this call is read.
    pub async fn read(&self, from: LogFrom) -> Result<LogReader, QueueError> {
        // A process that has just started is given the time to connect.
        let up = tokio::time::timeout(self.settings.timeout, self.publisher.wait_until_up());
        up.await.map_err(|_| QueueError("the broker is away: the order log cannot be read".into()))?;
        let mark = format!("mark-{}", uuid::Uuid::new_v4());
        let marked = self.publisher.log_as(mark.clone(), &[]).await;
        marked.map_err(|error| QueueError(format!("marking the end of the order log: {error}")))?;
        let open = Some(Open::consume(&self.settings, from).await?);
        Ok(LogReader { settings: self.settings.clone(), from, open, mark, first: None })
    }

    /// Where the log begins.
    pub async fn head(&self) -> Result<LogHead, QueueError> {
        let mut reader = self.read(LogFrom::Head).await?;
        reader.next().await?;
        let head = reader.first;
        reader.close().await;
        // There is the mark, at least.
        head.ok_or_else(|| QueueError("the order log has no beginning".into()))
    }
}

impl Open {
    async fn consume(settings: &QueueSettings, from: LogFrom) -> Result<Self, QueueError> {
        let link = Link::open(settings, "log").await?;
        let log = Names::new(&settings.prefix).log;
        let mut arguments = FieldTable::default();
        arguments.insert("x-stream-offset".into(), offset(from));
        let consuming = async {
            link.channel.basic_qos(PREFETCH, BasicQosOptions { global: false }).await?;
            let options = BasicConsumeOptions::default();
            Ok(link.channel.basic_consume(log.as_str().into(), "".into(), options, arguments).await?)
        };
        let stream = within(settings.timeout, consuming).await?;
        Ok(Self { link, stream, unacknowledged: 0 })
    }

    async fn delivery(&mut self, patience: Duration) -> Result<lapin::message::Delivery, QueueError> {
        let Ok(next) = tokio::time::timeout(patience, self.stream.next()).await else {
            return Err(QueueError(format!("the order log said nothing for {patience:?}")));
        };
        let next = next.ok_or_else(|| QueueError("the broker ended the reading of the order log".into()));
        let delivery = next??;
        // For the broker only a sign to send more: a stream forgets nothing for it.
        self.unacknowledged += 1;
        if self.unacknowledged == PREFETCH / 4 {
            self.unacknowledged = 0;
            delivery.acker.ack(BasicAckOptions { multiple: true }).await?;
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
    /// The next message; `None` at the end, which is where the log ended when the reading began. May be
    /// called again after an error: it reads on behind the last message, with a new connection.
    pub async fn next(&mut self) -> Result<Option<LogMessage>, QueueError> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => Open::consume(&self.settings, self.from).await?,
            };
            let delivery = open.delivery(self.settings.timeout).await?;
            let properties = &delivery.properties;
            let offset = properties.headers().as_ref().and_then(|headers| {
                let (_, at) = headers.inner().iter().find(|(name, _)| name.as_str() == "x-stream-offset")?;
                dead_letters::number(at).and_then(|at| u64::try_from(at).ok())
            });
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
            return Ok(Some(LogMessage { offset, at, entries: message::read_logged(&delivery.data) }));
        }
    }

    /// The first message that was read; `None` before the first call of [`LogReader::next`].
    pub fn first(&self) -> Option<LogHead> {
        self.first
    }

    pub async fn close(self) {
        if let Some(open) = self.open {
            open.link.close().await;
        }
    }
}
