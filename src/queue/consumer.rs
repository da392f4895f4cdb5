//! Taking deliveries, in batches. Connects at first use, and again whenever the connection is lost, with no limit on
//! the attempts.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::StreamExt as _;
use futures_util::stream::SelectAll;
use lapin::Channel;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::delivery::{Delivery, weight};
use super::link::{Link, Opening, within};
use super::prefetch::{Amount, Change, Prefetch};
use super::quiet::Quiet;
use super::topology::Names;
use super::unserved::{Unserved, remake_queue};
use super::{QueueError, QueueSettings};
use crate::link::Backoff;

/// A change of the prefetch that the broker has made.
enum Adjusted {
    /// This consumer may hold so many messages more.
    Wider(lapin::Consumer, u16),
    /// The last consumer gets no more.
    Narrower,
}

struct Open {
    link: Link,
    /// The deliveries of all consumers.
    stream: SelectAll<lapin::Consumer>,
    /// The consumers that get deliveries, oldest first.
    tags: Vec<ShortString>,
    prefetch: Prefetch,
    /// A change under way. A task of its own, because a caller may stop waiting: the broker would then lend messages to a
    /// consumer that nobody reads.
    adjusting: Option<JoinHandle<Result<Adjusted, QueueError>>>,
    /// Why the link is of no more use.
    ended: Option<String>,
    quiet: Quiet,
}

/// Takes deliveries from the queue of orders.
pub struct Consumer {
    settings: QueueSettings,
    /// Orders that the broker may lend, about.
    prefetch: usize,
    /// What the caller keeps without working on it.
    aside: Amount,
    /// A link that is being opened. Kept here because the caller may stop waiting first.
    opening: Option<Opening<Adjusted>>,
    open: Option<Open>,
    /// Taken and not returned yet. Kept here because a caller may stop waiting in between.
    batch: VecDeque<Delivery>,
    /// When the caller stops waiting for more. A caller that is interrupted again and again must not wait from the start each time.
    lingers_until: Option<Instant>,
    backoff: Backoff,
    /// The earliest time of the next attempt to connect. Kept here because the caller may stop waiting for it.
    connect_at: Instant,
    last_error: String,
    unserved: Unserved,
    /// When to check the connection next. Kept here because a caller may stop waiting many times a second.
    checks: Interval,
    consuming: watch::Sender<Consuming>,
}

/// What a consumer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consuming {
    /// It has no connection to the broker, and tries to get one.
    Connecting,
    /// The broker lends it messages.
    Connected,
    /// Its owner has closed it, and does not wait for messages.
    Closed,
}

/// The pause between two checks of the connection.
const CHECK_EVERY: Duration = Duration::from_secs(1);

impl Consumer {
    /// Does not connect yet. `prefetch` limits the orders in unacknowledged deliveries, about: the broker counts messages.
    pub fn new(settings: QueueSettings, prefetch: usize) -> Self {
        let mut checks = interval(CHECK_EVERY);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            settings,
            prefetch,
            aside: Amount::default(),
            opening: None,
            open: None,
            batch: VecDeque::new(),
            lingers_until: None,
            backoff: Backoff::default(),
            connect_at: Instant::now(),
            last_error: String::new(),
            unserved: Unserved::default(),
            checks,
            consuming: watch::Sender::new(Consuming::Connecting),
        }
    }

    /// What the caller keeps without working on it. The broker lends others besides.
    pub fn set_aside(&mut self, aside: Amount) {
        self.aside = aside;
    }

    /// Follows what the consumer does.
    pub fn watch(&self) -> watch::Receiver<Consuming> {
        self.consuming.subscribe()
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
        self.adjust().await;
        if self.batch.is_empty() {
            let Some(first) = self.next(timeout).await else { return Vec::new() };
            self.batch.push_back(first);
        }
        let until = Instant::now() + linger;
        let until = self.lingers_until.map_or(until, |earlier| earlier.min(until));
        self.lingers_until = Some(until);
        let mut orders: usize = self.batch.iter().map(|delivery| weight(&delivery.orders)).sum();
        while orders < most {
            self.adjust().await;
            let Some(open) = &mut self.open else { break };
            match tokio::time::timeout_at(until, open.stream.next()).await {
                Ok(Some(Ok(delivery))) => {
                    let delivery = open.take(delivery);
                    orders += weight(&delivery.orders);
                    self.batch.push_back(delivery);
                }
                // A stream reports its end only once.
                Ok(end) => {
                    open.end_stream(end);
                    break;
                }
                Err(_) => break,
            }
        }
        self.lingers_until = None;
        let mut taken = Vec::new();
        let mut orders = 0;
        while orders < most
            && let Some(delivery) = self.batch.pop_front()
        {
            orders += weight(&delivery.orders);
            taken.push(delivery);
        }
        taken
    }

    /// The deliveries that have arrived and that the caller has not taken yet, oldest first.
    pub fn arrived(&mut self) -> impl Iterator<Item = &Delivery> {
        if let Some(open) = &mut self.open {
            while open.ended.is_none()
                && let Some(next) = open.stream.next().now_or_never()
            {
                match next {
                    Some(Ok(delivery)) => self.batch.push_back(open.take(delivery)),
                    // A stream reports its end only once.
                    end => open.end_stream(end),
                }
            }
        }
        self.batch.iter()
    }

    async fn next(&mut self, timeout: Duration) -> Option<Delivery> {
        let timeout = tokio::time::sleep(timeout);
        tokio::pin!(timeout);
        loop {
            self.adjust().await;
            let Some(open) = &mut self.open else {
                self.try_to_open().await;
                continue;
            };
            if let Some(why) = open.ended.take() {
                self.lost(&why).await;
                continue;
            }
            tokio::select! {
                biased;
                next = open.stream.next() => match next {
                    Some(Ok(delivery)) => return Some(open.take(delivery)),
                    // A consumer that the server cancelled ends with None.
                    end => open.end_stream(end),
                },
                _ = self.checks.tick() => self.check().await,
                () = &mut timeout => return None,
            }
        }
    }

    /// Connects again if the connection is of no more use. Called about once a second while the caller wants deliveries and
    /// none has arrived.
    async fn check(&mut self) {
        let Some(open) = &mut self.open else { return };
        // A channel that failed may say nothing at all.
        if !open.link.is_up() {
            self.lost("the connection is closed").await;
        } else if open.quiet.is_forgotten(&open.link.channel, &self.settings, open.prefetch.has_room()) {
            tracing::warn!("messages wait and none is delivered: worker reconnects");
            metrics::counter!("doorbuster_worker_consumer_restarts_total").increment(1);
            self.disconnect(Consuming::Connecting).await;
        }
    }

    async fn try_to_open(&mut self) {
        self.consuming.send_replace(Consuming::Connecting);
        tokio::time::sleep_until(self.connect_at).await;
        match self.connect().await {
            Ok(open) => {
                tracing::info!("worker consumes");
                self.backoff.reset();
                self.last_error.clear();
                self.unserved.is_over();
                self.open = Some(open);
                self.consuming.send_replace(Consuming::Connected);
            }
            Err(error) => {
                let error = error.to_string();
                // One line per kind of error, not one per attempt.
                if error != self.last_error {
                    tracing::warn!(error, "worker cannot reach the broker, will keep trying");
                    self.last_error = error;
                }
                self.connect_at = Instant::now() + self.backoff.delay();
                if self.unserved.lasts(&self.last_error, Instant::now()) {
                    remake_queue(&self.settings).await;
                }
            }
        }
    }

    async fn lost(&mut self, why: &str) {
        tracing::warn!(error = why, "worker lost the broker");
        // Without a delay, every worker that lost the broker would declare the same queue at the same moment.
        self.connect_at = Instant::now() + self.backoff.delay();
        self.disconnect(Consuming::Connecting).await;
    }

    /// Cancel-safe.
    async fn connect(&mut self) -> Result<Open, QueueError> {
        let prefetch = Prefetch::new(self.prefetch);
        let messages = prefetch.first();
        let opening = self.opening.get_or_insert_with(|| {
            let settings = self.settings.clone();
            Link::opening(&self.settings, "worker", move |channel| async move {
                consume(&channel, &settings, messages).await
            })
        });
        let opened = opening.done().await;
        self.opening = None;
        let (link, first) = opened?;
        let (stream, tags) = (SelectAll::new(), Vec::new());
        let quiet = Quiet::default();
        let mut open = Open { link, stream, tags, prefetch, adjusting: None, ended: None, quiet };
        open.adjust(first);
        Ok(open)
    }

    /// Has the broker lend more messages or fewer, so that they carry about the orders that are wanted. Cancel-safe.
    async fn adjust(&mut self) {
        // Each narrowing ends a consumer, so their number is the bound.
        while self.adjust_once().await {}
    }

    /// Whether the broker lends fewer now, and may have to lend fewer still.
    async fn adjust_once(&mut self) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.ended.is_none()) else { return false };
        if open.adjusting.is_none() {
            let Some(change) = open.prefetch.change(self.aside) else { return false };
            let (channel, settings, last) =
                (open.link.channel.clone(), self.settings.clone(), open.tags.last().cloned());
            open.adjusting = Some(tokio::spawn(async move {
                match (change, last) {
                    (Change::Narrow, Some(tag)) => end_consumer(&channel, &settings, tag).await,
                    (Change::Narrow, None) => Ok(Adjusted::Narrower),
                    (Change::Widen(messages), _) => consume(&channel, &settings, messages).await,
                }
            }));
        }
        let Some(adjusting) = &mut open.adjusting else { return false };
        let adjusted = adjusting.await;
        open.adjusting = None;
        let is_narrower = matches!(adjusted, Ok(Ok(Adjusted::Narrower)));
        match adjusted {
            Ok(Ok(adjusted)) => open.adjust(adjusted),
            // The broker may still do it, and lend messages to a consumer that nobody reads.
            Ok(Err(error)) => open.end(&error),
            Err(error) => open.end(&error),
        }
        is_narrower
    }

    /// Returns all unacknowledged deliveries to the broker, and takes no more until the next batch is requested.
    pub async fn close(&mut self) {
        self.disconnect(Consuming::Closed).await;
    }

    async fn disconnect(&mut self, consuming: Consuming) {
        self.batch.clear();
        self.lingers_until = None;
        self.opening = None;
        self.consuming.send_replace(consuming);
        if let Some(open) = self.open.take() {
            open.link.close().await;
        }
    }
}

impl Open {
    fn take(&mut self, delivery: lapin::message::Delivery) -> Delivery {
        self.quiet = Quiet::default();
        Delivery::read(delivery, &mut self.prefetch)
    }

    /// Records why the link is of no more use, unless that is known: the next wait opens another.
    fn end(&mut self, why: &impl ToString) {
        self.ended.get_or_insert_with(|| why.to_string());
    }

    /// Records with what the stream has ended.
    fn end_stream(&mut self, end: Option<Result<lapin::message::Delivery, lapin::Error>>) {
        match end {
            Some(Err(error)) => self.end(&error),
            _ => self.end(&"the broker cancelled the consumer"),
        }
    }

    fn adjust(&mut self, adjusted: Adjusted) {
        match adjusted {
            Adjusted::Wider(consumer, messages) => {
                self.tags.push(consumer.tag());
                self.stream.push(consumer);
                self.prefetch.widened(messages);
            }
            Adjusted::Narrower => {
                self.tags.pop();
                self.prefetch.narrowed();
            }
        }
    }
}

/// Adds a consumer that may hold this many messages.
async fn consume(channel: &Channel, settings: &QueueSettings, messages: u16) -> Result<Adjusted, QueueError> {
    let queue = Names::new(&settings.prefix).orders;
    let consuming = async {
        // Per consumer, and for those to come: quorum queues refuse a prefetch for the channel.
        channel.basic_qos(messages, BasicQosOptions { global: false }).await?;
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        Ok(channel.basic_consume(queue.as_str().into(), "".into(), options, arguments).await?)
    };
    Ok(Adjusted::Wider(within(settings.timeout, consuming).await?, messages))
}

/// Ends a consumer. What it was given stays with this process.
async fn end_consumer(
    channel: &Channel,
    settings: &QueueSettings,
    tag: ShortString,
) -> Result<Adjusted, QueueError> {
    let ending = channel.basic_cancel(tag, BasicCancelOptions::default());
    within(settings.timeout, async { Ok(ending.await?) }).await?;
    Ok(Adjusted::Narrower)
}
