//! Taking deliveries, in batches. The connection is made at first use and again whenever it is
//! lost, without a last try.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::Acker;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::FieldTable;
use tokio::sync::watch;
use tokio::time::Instant;

use super::link::{Link, within};
use super::topology::Names;
use super::{QueueError, QueueSettings, Unreadable, message};
use crate::domain::Order;
use crate::link::Backoff;

/// A message in the hands of this process. Dropped without an answer it stays unacknowledged, and
/// comes back when the connection ends.
pub struct Delivery {
    pub orders: Result<Vec<Order>, Unreadable>,
    /// It was delivered before, to somebody who did not answer.
    pub redelivered: bool,
    acker: Acker,
}

impl Delivery {
    /// `false` where the broker no longer waits for it: then it comes again.
    pub async fn ack(&self) -> bool {
        self.acker.ack(BasicAckOptions::default()).await.unwrap_or(false)
    }

    /// Puts it on the dead-letter queue.
    pub async fn dead_letter(&self) -> bool {
        self.acker.reject(BasicRejectOptions { requeue: false }).await.unwrap_or(false)
    }

    /// Gives it back at once, for another worker; the broker counts it as a delivery.
    pub async fn hand_back(&self) -> bool {
        let options = BasicNackOptions { requeue: true, ..Default::default() };
        self.acker.nack(options).await.unwrap_or(false)
    }
}

struct Open {
    link: Link,
    stream: lapin::Consumer,
}

pub struct Consumer {
    settings: QueueSettings,
    prefetch: u16,
    open: Option<Open>,
    /// Taken, and not handed out yet. Kept here, because a caller may stop waiting in between.
    batch: Vec<Delivery>,
    backoff: Backoff,
    up: watch::Sender<bool>,
}

impl Consumer {
    /// `prefetch`: deliveries that the broker lends this process at once.
    pub fn new(settings: QueueSettings, prefetch: u16) -> Self {
        Self {
            settings,
            prefetch,
            open: None,
            batch: Vec::new(),
            backoff: Backoff::default(),
            up: watch::Sender::new(false),
        }
    }

    /// Tells whether deliveries can come.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.up.subscribe()
    }

    /// Waits for a delivery, then takes what comes within `linger`, `most` at most. Waits out an
    /// absence of the broker. May be cancelled: what was taken by then is in the next batch.
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
        while self.batch.len() < most {
            let Some(open) = &mut self.open else { break };
            match tokio::time::timeout_at(until, open.stream.next()).await {
                Ok(Some(Ok(delivery))) => self.batch.push(read(delivery)),
                // The next call sees the end of the stream again, and connects anew.
                Ok(_) | Err(_) => break,
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
                        self.open = Some(open);
                        self.up.send_replace(true);
                    }
                    Err(error) => {
                        if self.backoff.tries() == 0 {
                            tracing::warn!(%error, "worker cannot reach the broker, will keep trying");
                        }
                        tokio::time::sleep(self.backoff.delay()).await;
                    }
                }
                continue;
            };
            // A consumer that was cancelled by the server ends with None; a channel that failed
            // may say nothing at all, so the link is looked at in between.
            let pause = patience.saturating_sub(waited).min(Duration::from_secs(1));
            match tokio::time::timeout(pause, open.stream.next()).await {
                Ok(Some(Ok(delivery))) => return Some(read(delivery)),
                Err(_) if open.link.is_up() => {
                    waited += pause;
                    if waited >= patience {
                        return None;
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
                }
            }
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
        Ok(Open { link, stream })
    }

    /// Gives back what was lent and not acknowledged.
    pub async fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.up.send_replace(false);
            open.link.close().await;
        }
    }
}

fn read(delivery: lapin::message::Delivery) -> Delivery {
    Delivery {
        orders: message::read(&delivery.data),
        redelivered: delivery.redelivered,
        acker: delivery.acker,
    }
}
