//! Publishing with confirms. One task owns the confirm channel: a channel that several tasks share
//! gives one task's answer to another.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::link::{Link, within};
use super::topology::{self, Depths, Names};
use super::{QueueError, QueueSettings, message};
use crate::domain::{Entry, Millis, Order};
use crate::fault::fault;
use crate::link::Backoff;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// Nothing was sent: the broker is known to be away or blocked, or too much waits already.
    #[error("the broker is away")]
    Away,
    /// It was sent, and no confirm came in time: the broker may have it.
    #[error("the broker did not confirm in time")]
    Unconfirmed,
    /// The broker said no: it does not have it.
    #[error("the broker refused the message: {0}")]
    Refused(String),
}

struct Job {
    exchange: Exchange,
    id: String,
    payload: Vec<u8>,
    headers: FieldTable,
    answer: Answer,
}

enum Exchange {
    Orders,
    Dead,
    Log,
}

/// A handle to the publishing task, which ends with the last handle. Cheap to clone.
#[derive(Clone)]
pub struct Publisher {
    jobs: mpsc::Sender<Job>,
    up: watch::Receiver<bool>,
    depths: watch::Receiver<Option<Depths>>,
}

impl Publisher {
    /// Must be called inside a tokio runtime. Does not wait for the broker.
    pub fn open(settings: QueueSettings) -> Self {
        let (jobs, inbox) = mpsc::channel(settings.window);
        let (tell, up) = watch::channel(false);
        let (tell_depths, depths) = watch::channel(None);
        tokio::spawn(Owner { settings, inbox, tell, tell_depths, last_error: String::new() }.run());
        Self { jobs, up, depths }
    }

    /// On `Ok` the broker has the message on a durable queue. May be repeated: workers recognise
    /// an order that they have seen.
    pub async fn publish(&self, orders: &[Order]) -> Result<(), PublishError> {
        self.publish_with(orders, FieldTable::default()).await
    }

    pub(super) async fn publish_with(
        &self,
        orders: &[Order],
        headers: FieldTable,
    ) -> Result<(), PublishError> {
        let Some(first) = orders.first() else { return Ok(()) };
        self.send(Exchange::Orders, first.id.to_string(), message::write(orders), headers).await
    }

    /// On `Ok` the letter lies on the dead-letter queue. May be repeated: then it lies there twice.
    pub(super) async fn dead_letter(
        &self,
        id: String,
        payload: Vec<u8>,
        headers: FieldTable,
    ) -> Result<(), PublishError> {
        self.send(Exchange::Dead, id, payload, headers).await
    }

    /// On `Ok` the order log has these entries. May be repeated: readers count the higher version.
    pub async fn log(&self, entries: &[Entry]) -> Result<(), PublishError> {
        self.log_as(uuid::Uuid::new_v4().to_string(), entries).await
    }

    pub(super) async fn log_as(&self, id: String, entries: &[Entry]) -> Result<(), PublishError> {
        self.send(Exchange::Log, id, message::write_entries(entries), FieldTable::default()).await
    }

    async fn send(
        &self,
        exchange: Exchange,
        id: String,
        payload: Vec<u8>,
        headers: FieldTable,
    ) -> Result<(), PublishError> {
        if !self.is_up() {
            return Err(PublishError::Away);
        }
        let (answer, confirmed) = oneshot::channel();
        let job = Job { exchange, id, payload, headers, answer };
        self.jobs.try_send(job).map_err(|_| PublishError::Away)?;
        // The owner drops what it cannot answer for: then nobody knows.
        confirmed.await.unwrap_or(Err(PublishError::Unconfirmed))
    }

    /// Is the broker there, as far as is known?
    pub fn is_up(&self) -> bool {
        // An owner that is gone, by a fault of ours, leaves its last word behind.
        *self.up.borrow() && !self.jobs.is_closed()
    }

    /// What waits in the queues, as it was some seconds ago; `None` while the broker is away.
    pub fn depths(&self) -> Option<Depths> {
        self.depths.borrow().filter(|_| self.is_up())
    }

    /// Returns once the broker is away, as far as is known.
    pub async fn wait_until_down(&self) {
        let mut up = self.up.clone();
        let _ = up.wait_for(|up| !*up).await;
    }

    /// Returns once the broker is there; never, if it does not come.
    pub async fn wait_until_up(&self) {
        let mut up = self.up.clone();
        let _ = up.wait_for(|up| *up).await;
    }
}

/// A queue that somebody deleted is back after this time. Until then what is published lies in the order
/// log, or in `P.unrouted` where that is gone too, and comes again from the outbox.
const DECLARE_EVERY: Duration = Duration::from_secs(5);

/// A broker that confirms nothing for this long, while something waits for it, is away to new
/// orders. A confirm takes milliseconds.
const SILENT: Duration = Duration::from_secs(1);

type Answer = oneshot::Sender<Result<(), PublishError>>;
type Confirmed = Result<lapin::Result<Confirmation>, tokio::time::error::Elapsed>;
type Unconfirmed = futures_util::future::BoxFuture<'static, (String, Answer, Confirmed)>;

struct Owner {
    settings: QueueSettings,
    inbox: mpsc::Receiver<Job>,
    tell: watch::Sender<bool>,
    tell_depths: watch::Sender<Option<Depths>>,
    last_error: String,
}

impl Owner {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            match self.connect().await {
                None => return,
                Some(Ok(link)) => {
                    tracing::info!("publisher connected to the broker");
                    backoff.reset();
                    self.last_error.clear();
                    self.tell_depths.send_replace(Some(link.depths));
                    self.tell.send_replace(true);
                    let ended = self.serve(&link).await;
                    self.tell.send_replace(false);
                    link.close().await;
                    match ended {
                        Ok(()) => return,
                        Err(error) => tracing::warn!(%error, "publisher lost the broker"),
                    }
                }
                Some(Err(error)) => self.say_once(&error),
            }
            if !self.refuse_during(tokio::time::sleep(backoff.delay())).await {
                return;
            }
        }
    }

    /// One line per kind of trouble, not one per try.
    fn say_once(&mut self, error: &QueueError) {
        let error = error.to_string();
        if error != self.last_error {
            tracing::warn!(%error, "publisher cannot reach the broker, will keep trying");
            self.last_error = error;
        }
    }

    /// `None` when all handles are gone.
    async fn connect(&mut self) -> Option<Result<Link, QueueError>> {
        let settings = self.settings.clone();
        let connecting = async move {
            let link = Link::open(&settings, "publisher").await?;
            let confirms = async {
                link.channel.confirm_select(ConfirmSelectOptions::default()).await?;
                Ok(())
            };
            within(settings.timeout, confirms).await?;
            Ok(link)
        };
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                link = &mut connecting => return Some(link),
                job = self.inbox.recv() => refuse(job?),
            }
        }
    }

    /// Answers `Away` until `until` ends; `false` when all handles are gone.
    async fn refuse_during(&mut self, until: impl Future<Output = ()>) -> bool {
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = &mut until => return true,
                job = self.inbox.recv() => match job {
                    Some(job) => refuse(job),
                    None => return false,
                },
            }
        }
    }

    /// `Ok` when all handles are gone; an error when the link is of no more use. Whatever is
    /// unanswered by then is dropped, and so becomes `Unconfirmed`.
    async fn serve(&mut self, link: &Link) -> Result<(), QueueError> {
        let names = Names::new(&self.settings.prefix);
        let limit = self.settings.timeout;
        let mut unconfirmed = FuturesUnordered::<Unconfirmed>::new();
        let mut last_confirm = Instant::now();
        // When the oldest publish was sent that may be without a confirm.
        let mut waits_since: Option<Instant> = None;
        let mut pulse = tokio::time::interval(Duration::from_millis(200));
        let mut open = true;
        let mut declared = Instant::now();
        loop {
            if !open && unconfirmed.is_empty() {
                return Ok(());
            }
            tokio::select! {
                Some((id, answer, confirmed)) = unconfirmed.next() => {
                    fault!("confirm.before", continue);
                    let result = judge(&id, confirmed);
                    if result != Err(PublishError::Unconfirmed) {
                        last_confirm = Instant::now();
                        waits_since = Some(last_confirm);
                    }
                    if unconfirmed.is_empty() {
                        waits_since = None;
                    }
                    let quiet = result == Err(PublishError::Unconfirmed) && last_confirm.elapsed() > limit;
                    // A request that gave up waiting does not matter.
                    let _ = answer.send(result);
                    if quiet && !link.is_blocked() {
                        return Err(QueueError(format!("no confirm from the broker for {limit:?}")));
                    }
                }
                job = self.inbox.recv(), if open && unconfirmed.len() < self.settings.window => {
                    let Some(job) = job else { open = false; continue };
                    if link.is_blocked() {
                        refuse(job);
                        continue;
                    }
                    let Job { exchange, id, payload, headers, answer } = job;
                    let name = match exchange {
                        Exchange::Orders => names.orders.as_str(),
                        Exchange::Dead => names.dead.as_str(),
                        Exchange::Log => names.log.as_str(),
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
                    waits_since.get_or_insert_with(Instant::now);
                    unconfirmed.push(Box::pin(async move {
                        (id, answer, tokio::time::timeout(limit, confirm).await)
                    }));
                }
                _ = pulse.tick() => {
                    if !link.is_up() {
                        return Err(QueueError("the connection is closed".into()));
                    }
                    // Nothing is written to a blocked connection: declaring would only time out.
                    if declared.elapsed() > DECLARE_EVERY && !link.is_blocked() {
                        declared = Instant::now();
                        let declaring = within(limit, topology::declare(&link.channel, &self.settings));
                        let depths = self.unless_silent(declaring).await?;
                        self.tell_depths.send_replace(Some(depths));
                    }
                    // Blocked is away to whoever asks, though the connection lives; and so is a
                    // broker that has gone silent, long before it counts as lost: nobody who comes
                    // now should wait for it.
                    let silent = waits_since.is_some_and(|since| since.elapsed() > SILENT);
                    let ready = !link.is_blocked() && !silent;
                    self.tell.send_if_modified(|up| std::mem::replace(up, ready) != ready);
                }
            }
        }
    }

    /// What the broker answers; where that takes long, it is away to new orders meanwhile.
    async fn unless_silent<T>(&self, asked: impl Future<Output = T>) -> T {
        tokio::pin!(asked);
        match tokio::time::timeout(SILENT, &mut asked).await {
            Ok(answer) => answer,
            Err(_) => {
                self.tell.send_replace(false);
                asked.await
            }
        }
    }
}

fn refuse(job: Job) {
    let _ = job.answer.send(Err(PublishError::Away));
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

/// Only an ack without a returned message is success. A returned message may come with the confirm
/// of another: then nothing is known of this one.
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
