//! Subscriptions to Redis channels. Messages published while the connection is lost are missed, so a subscriber
//! must also be able to find out by polling.

use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::{PubSub, PubSubSink, PubSubStream};

use super::error::Fault;

/// A connection to Redis that receives messages from channels.
pub struct Channels {
    sink: PubSubSink,
    stream: PubSubStream,
    timeout: Duration,
}

impl Channels {
    pub(super) fn new(connection: PubSub, timeout: Duration) -> Self {
        let (sink, stream) = connection.split();
        Self { sink, stream, timeout }
    }

    /// On return every message published to the channel is received, while the connection lasts.
    pub async fn subscribe(&mut self, channel: &str) -> Result<(), Fault> {
        within(self.timeout, self.sink.subscribe(channel)).await
    }

    /// Stops receiving messages from the channel. Messages received before may still be returned.
    pub async fn unsubscribe(&mut self, channel: &str) -> Result<(), Fault> {
        within(self.timeout, self.sink.unsubscribe(channel)).await
    }

    /// Checks that Redis still answers on this connection.
    pub async fn ping(&mut self) -> Result<(), Fault> {
        within(self.timeout, async { self.sink.ping::<redis::Value>().await.map(|_| ()) }).await
    }

    /// The next message, as channel and text; one that is not UTF-8 is skipped. `None` when the connection is lost.
    pub async fn next(&mut self) -> Option<(String, String)> {
        loop {
            let message = self.stream.next().await?;
            if let Ok(text) = message.get_payload() {
                return Some((message.get_channel_name().to_owned(), text));
            }
        }
    }
}

async fn within(timeout: Duration, work: impl Future<Output = redis::RedisResult<()>>) -> Result<(), Fault> {
    match tokio::time::timeout(timeout, work).await {
        Ok(done) => done.map_err(Fault::from),
        Err(_) => Err(Fault::Late(format!("no reply within {timeout:?}"))),
    }
}
