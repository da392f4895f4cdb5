//! Taking deliveries, in batches. Connects at first use, and again whenever the connection is lost, with no limit on
//! the attempts.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{SelectAll, select_all};
use lapin::Acker;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use tokio::sync::watch;
use tokio::time::Instant;

use super::headers::{self, DELIVERY_COUNT};
use super::link::{Link, within};
use super::topology::{self, Names};
use super::{QueueError, QueueSettings, Unreadable, message};
use crate::domain::Order;
use crate::link::Backoff;

/// A message that this process holds. If it is dropped it stays unacknowledged, and the broker delivers it again when
/// the connection ends.
pub struct Delivery {
    /// The orders that the message carries.
    pub orders: Result<Vec<Order>, Unreadable>,
    /// How often it was delivered before, to workers that did not acknowledge it.
    pub redeliveries: u64,
    /// How often an operator replayed it.
    pub(super) replays: u32,
    /// The message and its id, for the dead-letter queue.
    pub(super) payload: Vec<u8>,
    pub(super) id: Option<String>,
    acker: Acker,
}

impl Delivery {
    fn read(delivery: lapin::message::Delivery) -> Self {
        let headers = delivery.properties.headers().as_ref();
        // Quorum queues count redeliveries; a classic queue only says whether there was one.
        let redeliveries = headers::count(headers, DELIVERY_COUNT);
        Self {
            orders: message::read(&delivery.data),
            replays: headers::replays(headers),
            redeliveries: redeliveries.unwrap_or_else(|| u64::from(delivery.redelivered)),
            id: delivery.properties.message_id().as_ref().map(ToString::to_string),
            payload: delivery.data,
            acker: delivery.acker,
        }
    }

    /// Its number of orders; an unreadable message counts as 1.
    fn weight(&self) -> usize {
        self.orders.as_ref().map_or(1, Vec::len)
    }

    /// Removes the message from the queue. `false`: the broker no longer waits for the ack, and the message comes again.
    pub async fn ack(&self) -> bool {
        self.acker.ack(BasicAckOptions::default()).await.unwrap_or(false)
    }
}

struct Open {
    link: Link,
    /// One consumer, and one more for each time that the prefetch was widened.
    stream: SelectAll<lapin::Consumer>,
    /// The stream has ended.
    ended: bool,
}

/// Takes deliveries from the queue of orders.
pub struct Consumer {
    settings: QueueSettings,
    prefetch: u16,
    open: Option<Open>,
    /// Taken and not returned yet. Kept here because a caller may stop waiting in between.
    batch: Vec<Delivery>,
    backoff: Backoff,
    last_error: String,
    /// Seconds without a delivery.
    quiet: u32,
    up: watch::Sender<bool>,
}

const SECOND: Duration = Duration::from_secs(1);

/// Seconds of silence after which to check whether messages wait.
const QUIET: u32 = 5;

impl Consumer {
    /// Does not connect yet. `prefetch` limits the unacknowledged deliveries.
    pub fn new(settings: QueueSettings, prefetch: u16) -> Self {
        Self {
            settings,
            prefetch,
            open: None,
            batch: Vec::new(),
            backoff: Backoff::default(),
            last_error: String::new(),
            quiet: 0,
            up: watch::Sender::new(false),
        }
    }

    /// How many deliveries may be unacknowledged at a time on the present connection.
    pub fn capacity(&self) -> usize {
        let consumers = self.open.as_ref().map_or(1, |open| open.stream.len().max(1));
        consumers * usize::from(self.prefetch)
    }

    /// `true` while the consumer is connected.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.up.subscribe()
    }

    /// Waits for a delivery, then collects more for up to `linger`, or until it has at least `most` orders: one
    /// delivery may carry many. Waits while the broker is unavailable. Cancel-safe: deliveries taken by then are in the
    /// next batch.
    pub async fn next_batch(&mut self, most: usize, linger: Duration) -> Vec<Delivery> {
        self.next_batch_within(most, linger, Duration::MAX).await
    }

    /// The same with a timeout: empty if no delivery came by then. Connecting may take longer.
    pub async fn next_batch_within(
        &mut self,
        most: usize,
        linger: Duration,
        timeout: Duration,
    ) -> Vec<Delivery> {
        if self.batch.is_empty() {
            let Some(first) = self.next(timeout).await else { return Vec::new() };
            self.batch.push(first);
        }
        let until = Instant::now() + linger;
        let mut orders: usize = self.batch.iter().map(Delivery::weight).sum();
        while orders < most {
            let Some(open) = &mut self.open else { break };
            match tokio::time::timeout_at(until, open.stream.next()).await {
                Ok(Some(Ok(delivery))) => {
                    let delivery = Delivery::read(delivery);
                    orders += delivery.weight();
                    self.batch.push(delivery);
                }
                // A stream reports its end only once.
                Ok(_) => {
                    open.ended = true;
                    break;
                }
                Err(_) => break,
            }
        }
        std::mem::take(&mut self.batch)
    }

    async fn next(&mut self, timeout: Duration) -> Option<Delivery> {
        let mut waited = Duration::ZERO;
        loop {
            let Some(open) = &mut self.open else {
                self.try_to_open().await;
                continue;
            };
            // A consumer that the server cancelled ends with None. A channel that failed may say nothing at all, so
            // the link is checked every second.
            let pause = timeout.saturating_sub(waited).min(SECOND);
            let next = async { if open.ended { None } else { open.stream.next().await } };
            match tokio::time::timeout(pause, next).await {
                Ok(Some(Ok(delivery))) => {
                    self.quiet = 0;
                    return Some(Delivery::read(delivery));
                }
                Err(_) if open.link.is_up() => {
                    waited += pause;
                    if waited >= timeout {
                        return None;
                    }
                    // A caller with a shorter timeout holds deliveries.
                    if pause == SECOND && self.is_forgotten().await {
                        tracing::warn!("messages wait and none is delivered: worker reconnects");
                        metrics::counter!("worker_consumer_restarts_total").increment(1);
                        self.close().await;
                    }
                }
                Ok(Some(Err(error))) => self.lost(&error.to_string()).await,
                Ok(_) => self.lost("the broker cancelled the consumer").await,
                Err(_) => self.lost("the connection is closed").await,
            }
        }
    }

    async fn try_to_open(&mut self) {
        match self.connect().await {
            Ok(open) => {
                tracing::info!("worker consumes");
                self.backoff.reset();
                self.last_error.clear();
                self.open = Some(open);
                self.up.send_replace(true);
            }
            Err(error) => {
                let error = error.to_string();
                // One line per kind of error, not one per attempt.
                if error != self.last_error {
                    tracing::warn!(error, "worker cannot reach the broker, will keep trying");
                    self.last_error = error;
                }
                tokio::time::sleep(self.backoff.delay()).await;
            }
        }
    }

    async fn lost(&mut self, why: &str) {
        tracing::warn!(error = why, "worker lost the broker");
        self.close().await;
        // Without a delay, every worker that lost the broker would declare the same queue at the same moment.
        tokio::time::sleep(self.backoff.delay()).await;
    }

    /// Whether the consumer is connected and gets no deliveries although messages wait. Called once per second of
    /// silence; asks the broker after every [`QUIET`] seconds.
    async fn is_forgotten(&mut self) -> bool {
        self.quiet += 1;
        let Some(open) = self.open.as_ref().filter(|_| self.quiet.is_multiple_of(QUIET)) else {
            return false;
        };
        let waiting = within(self.settings.timeout, topology::waiting(&open.link.channel, &self.settings));
        // Twice in a row, because the count may be behind. A link on which even this fails is useless.
        match waiting.await {
            Ok(0) => {
                self.quiet = 0;
                false
            }
            Ok(_) => self.quiet >= 2 * QUIET,
            Err(_) => true,
        }
    }

    async fn connect(&self) -> Result<Open, QueueError> {
        let link = Link::open(&self.settings, "worker").await?;
        // Per consumer, not global: quorum queues refuse a global prefetch.
        let limiting = link.channel.basic_qos(self.prefetch, BasicQosOptions { global: false });
        within(self.settings.timeout, async { Ok(limiting.await?) }).await?;
        let consumer = consume(&link, &self.settings).await?;
        Ok(Open { link, stream: select_all([consumer]), ended: false })
    }

    /// Has the broker give as many deliveries again as `prefetch` says, besides those that are not acknowledged yet: for
    /// a caller who holds many back and can go on with others. Until the connection ends.
    pub async fn widen(&mut self) {
        let Some(open) = &mut self.open else { return };
        match consume(&open.link, &self.settings).await {
            Ok(consumer) => open.stream.push(consumer),
            // If the link is gone, the next delivery shows it.
            Err(error) => tracing::warn!(%error, "no more deliveries than before"),
        }
    }

    /// Returns all unacknowledged deliveries to the broker, and takes no more until the next batch is requested.
    pub async fn close(&mut self) {
        self.batch.clear();
        self.quiet = 0;
        if let Some(open) = self.open.take() {
            self.up.send_replace(false);
            open.link.close().await;
        }
    }
}

async fn consume(link: &Link, settings: &QueueSettings) -> Result<lapin::Consumer, QueueError> {
    let queue = Names::new(&settings.prefix).orders;
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let consuming = link.channel.basic_consume(queue.as_str().into(), "".into(), options, arguments);
    within(settings.timeout, async { Ok(consuming.await?) }).await
}
