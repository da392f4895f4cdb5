//! The confirm channel of one connection: each message that was sent, until its confirm.

use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use lapin::options::BasicPublishOptions;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation};
use tokio::time::Instant;

use super::job::{Answer, Exchange, Job, PublishError};
use crate::domain::Millis;
use crate::fault::fault;
use crate::queue::link::{Link, within};
use crate::queue::topology::Names;
use crate::queue::{QueueError, QueueSettings};

type Confirmed = Result<lapin::Result<Confirmation>, tokio::time::error::Elapsed>;
type Answered = (Sent, Confirmed);

/// A message that waits for its confirm.
pub(super) struct Sent {
    id: String,
    answer: Answer,
    /// Bytes that the order log gains when it is confirmed; 0 for a dead letter.
    log_bytes: u64,
}

pub(super) struct Session<'a> {
    link: &'a Link,
    names: Names,
    timeout: Duration,
    /// Messages that were sent and not confirmed yet.
    pub(super) unconfirmed: FuturesUnordered<BoxFuture<'static, Answered>>,
    last_confirm: Instant,
    /// The earliest time since which a message may be waiting for its confirm.
    pub(super) waits_since: Option<Instant>,
}

impl<'a> Session<'a> {
    pub(super) fn new(link: &'a Link, settings: &QueueSettings) -> Self {
        Self {
            link,
            names: Names::new(&settings.prefix),
            timeout: settings.timeout,
            unconfirmed: FuturesUnordered::new(),
            last_confirm: Instant::now(),
            waits_since: None,
        }
    }

    /// Sends a message, or refuses it while the broker is blocked. On an error the link is unusable.
    pub(super) async fn publish(&mut self, job: Job) -> Result<(), QueueError> {
        let (link, limit) = (self.link, self.timeout);
        if link.is_blocked() {
            job.refuse();
            return Ok(());
        }
        let Job { exchange, id, payload, headers, answer } = job;
        let name = match exchange {
            Exchange::Orders => self.names.orders.as_str(),
            Exchange::Dead => self.names.dead.as_str(),
            Exchange::Log => self.names.log.as_str(),
        };
        let sent = link.channel.basic_publish(
            name.into(),
            name.into(),
            BasicPublishOptions { mandatory: true, ..Default::default() },
            &payload,
            properties(id.clone(), headers),
        );
        let confirm = within(limit, async { Ok(sent.await?) }).await?;
        fault!("publish.after", return Err(QueueError("injected".into())));
        self.waits_since.get_or_insert_with(Instant::now);
        let log_bytes = if exchange == Exchange::Dead { 0 } else { payload.len() as u64 };
        let sent = Sent { id, answer, log_bytes };
        self.unconfirmed.push(Box::pin(async move { (sent, tokio::time::timeout(limit, confirm).await) }));
        Ok(())
    }

    /// Answers a caller. An error means that the broker has confirmed nothing for too long.
    pub(super) async fn confirm(&mut self, (sent, confirmed): Answered) -> Result<(), QueueError> {
        // Before the failure point: a message whose answer is lost waits for nothing any more, and must not make the
        // broker look silent for ever.
        if self.unconfirmed.is_empty() {
            self.waits_since = None;
        }
        fault!("confirm.before", return Ok(()));
        let limit = self.timeout;
        let result = judge(&sent.id, confirmed);
        if result.is_ok() {
            metrics::counter!("doorbuster_order_log_bytes_total").increment(sent.log_bytes);
        }
        if result != Err(PublishError::Unconfirmed) {
            self.last_confirm = Instant::now();
            self.waits_since = (!self.unconfirmed.is_empty()).then_some(self.last_confirm);
        }
        let quiet = result == Err(PublishError::Unconfirmed) && self.last_confirm.elapsed() > limit;
        // The caller may have stopped waiting.
        let _ = sent.answer.send(result);
        if quiet && !self.link.is_blocked() {
            return Err(QueueError(format!("no confirm from the broker for {limit:?}")));
        }
        Ok(())
    }
}

fn properties(id: String, headers: FieldTable) -> BasicProperties {
    const PERSISTENT: u8 = 2;
    BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type("application/json".into())
        .with_message_id(id.into())
        .with_timestamp(u64::try_from(Millis::now().0 / 1000).unwrap_or(0))
        .with_headers(headers)
}

/// Only an ack without a returned message is success. A confirm may come with another's returned message: then nothing
/// is known about this one.
fn judge(id: &str, confirmed: Confirmed) -> Result<(), PublishError> {
    match confirmed {
        Ok(Ok(Confirmation::Ack(None))) => Ok(()),
        Ok(Ok(Confirmation::Ack(Some(returned)))) => match returned.delivery.properties.message_id() {
            Some(of) if of.as_str() == id => Err(PublishError::Refused("no queue took it".into())),
            _ => Err(PublishError::Unconfirmed),
        },
        Ok(Ok(Confirmation::Nack(_))) => Err(PublishError::Refused("nack".into())),
        Ok(Ok(Confirmation::NotRequested)) => {
            Err(PublishError::Refused("confirms are not switched on".into()))
        }
        Ok(Err(_)) | Err(_) => Err(PublishError::Unconfirmed),
    }
}
