//! Taking deliveries, in batches. The connection is made at first use and again whenever it is
//! lost, without a last try.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::Acker;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use tokio::sync::watch;
use tokio::time::Instant;

use super::link::{Link, within};
use super::topology::{self, Names};
use super::{QueueError, QueueSettings, Unreadable, dead_letters, message};
use crate::domain::Order;
use crate::link::Backoff;

/// A message in the hands of this process. Dropped without an answer it stays unacknowledged, and
/// comes back when the connection ends.
pub struct Delivery {
    pub orders: Result<Vec<Order>, Unreadable>,
    /// Times that it was delivered before, to somebody who did not answer.
    pub redeliveries: u64,
    /// Times that an operator had it processed again.
    pub(super) replays: u32,
    /// Its bytes and its name, for the dead-letter queue.
    pub(super) payload: Vec<u8>,
    pub(super) id: Option<String>,
    acker: Acker,
}

impl Delivery {
    /// Of what cannot be read it is 1.
    fn weight(&self) -> usize {
        self.orders.as_ref().map_or(1, Vec::len)
    }

    /// `false` where the broker no longer waits for it: then it comes again.
    pub async fn ack(&self) -> bool {
        self.acker.ack(BasicAckOptions::default()).await.unwrap_or(false)
    }
}

struct Open {
    link: Link,
    stream: lapin::Consumer,
    /// The stream's end has been seen.
    ended: bool,
}

pub struct Consumer {
    settings: QueueSettings,
    prefetch: u16,
    open: Option<Open>,
    /// Taken, and not handed out yet. Kept here, because a caller may stop waiting in between.
    batch: Vec<Delivery>,
    backoff: Backoff,
    last_error: String,
    /// Seconds without a delivery.
    quiet: u32,
    up: watch::Sender<bool>,
}

const SECOND: Duration = Duration::from_secs(1);

/// Seconds of silence after which it is worth asking whether messages wait.
const QUIET: u32 = 5;

impl Consumer {
    /// `prefetch`: deliveries that the broker lends this process at once.
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

    /// Tells whether deliveries can come.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.up.subscribe()
    }

    /// Waits for a delivery, then takes what comes within `linger`, until it has `most` orders or more: a
    /// message is one delivery however many it carries. Waits out an absence of the broker. May be
    /// cancelled: what was taken by then is in the next batch.
    pub async fn next_batch(&mut self, most: usize, linger: Duration) -> Vec<Delivery> {
        self.next_batch_within(most, linger, Duration::MAX).await
    }

    /// The same, for a caller who has something else to do after `patience`: empty, if no delivery
    /// came by then. Connecting is not cut short by it.
    pub async fn next_batch_within(
        &mut self,
        most: usize,
        linger: Duration,
        patience: Duration,
    ) -> Vec<Delivery> {
        if self.batch.is_empty() {
            let Some(first) = self.next(patience).await else { return Vec::new() };
            self.batch.push(first);
        }
        let until = Instant::now() + linger;
        let mut orders: usize = self.batch.iter().map(Delivery::weight).sum();
        while orders < most {
            let Some(open) = &mut self.open else { break };
            match tokio::time::timeout_at(until, open.stream.next()).await {
                Ok(Some(Ok(delivery))) => {
                    let delivery = read(delivery);
                    orders += delivery.weight();
                    self.batch.push(delivery);
                }
                // A stream says once that it has ended.
                Ok(_) => {
                    open.ended = true;
                    break;
                }
                Err(_) => break,
            }
        }
        std::mem::take(&mut self.batch)
    }

    async fn next(&mut self, patience: Duration) -> Option<Delivery> {
        let mut waited = Duration::ZERO;
        loop {
            let Some(open) = &mut self.open else {
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
                        // One line per kind of trouble, not one per try.
                        if error != self.last_error {
                            tracing::warn!(error, "worker cannot reach the broker, will keep trying");
                            self.last_error = error;
                        }
                        tokio::time::sleep(self.backoff.delay()).await;
                    }
                }
                continue;
            };
            // A consumer that was cancelled by the server ends with None; a channel that failed
            // may say nothing at all, so the link is looked at in between.
            let pause = patience.saturating_sub(waited).min(SECOND);
            let next = async { if open.ended { None } else { open.stream.next().await } };
            match tokio::time::timeout(pause, next).await {
                Ok(Some(Ok(delivery))) => {
                    self.quiet = 0;
                    return Some(read(delivery));
                }
                Err(_) if open.link.is_up() => {
                    waited += pause;
                    if waited >= patience {
                        return None;
                    }
                    // Short waits are those of a caller who has deliveries in hand.
                    if pause == SECOND && self.is_forgotten().await {
                        tracing::warn!("messages wait and none is delivered: worker connects anew");
                        metrics::counter!("worker_consumer_restarts_total").increment(1);
                        self.close().await;
                    }
                }
                ended => {
                    let why = match ended {
                        Ok(Some(Err(error))) => error.to_string(),
                        Ok(_) => "the broker cancelled the consumer".into(),
                        Err(_) => "the connection is closed".into(),
                    };
                    tracing::warn!(error = why, "worker lost the broker");
                    self.close().await;
                    // All who lost it would declare the same queue in the same instant.
                    tokio::time::sleep(self.backoff.delay()).await;
                }
            }
        }
    }

    /// Up, with nothing in hand, and yet without deliveries while messages wait: looked at after
    /// every [`QUIET`] seconds of silence. ActRequest once a second of silence.
    async fn is_forgotten(&mut self) -> bool {
        self.quiet += 1;
        let Some(open) = self.open.as_ref().filter(|_| self.quiet.is_multiple_of(QUIET)) else {
            return false;
        };
        let waiting = within(self.settings.timeout, topology::waiting(&open.link.channel, &self.settings));
        // Twice in a row, because the count may be behind. A link that cannot tell is of no use.
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
        let queue = Names::new(&self.settings.prefix).orders;
        let consuming = async {
            // Per consumer, not global: quorum queues refuse a global prefetch.
            link.channel.basic_qos(self.prefetch, BasicQosOptions { global: false }).await?;
            let options = BasicConsumeOptions::default();
            Ok(link
                .channel
                .basic_consume(queue.as_str().into(), "".into(), options, FieldTable::default())
                .await?)
        };
        let stream = within(self.settings.timeout, consuming).await?;
        Ok(Open { link, stream, ended: false })
    }

    /// Gives back what was lent and not acknowledged, and takes nothing more until it is asked for
    /// the next batch.
    pub async fn close(&mut self) {
        self.batch.clear();
        self.quiet = 0;
        if let Some(open) = self.open.take() {
            self.up.send_replace(false);
            open.link.close().await;
        }
    }
}

fn read(delivery: lapin::message::Delivery) -> Delivery {
    // Quorum queues count for whoever asks; a classic queue only says that there was one before.
    let counted = delivery.properties.headers().as_ref().and_then(|headers| {
        let (_, count) = headers.inner().iter().find(|(name, _)| name.as_str() == "x-delivery-count")?;
        dead_letters::number(count).and_then(|count| u64::try_from(count).ok())
    });
    Delivery {
        orders: message::read(&delivery.data),
        replays: dead_letters::replays(delivery.properties.headers().as_ref()),
        redeliveries: counted.unwrap_or_else(|| u64::from(delivery.redelivered)),
        id: delivery.properties.message_id().as_ref().map(ToString::to_string),
        payload: delivery.data,
        acker: delivery.acker,
    }
}
