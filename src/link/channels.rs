//! A connection to Redis that hears what is told on channels. What is told while it is lost is
//! missed: it serves those who would also find out by themselves.

use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::{PubSub, PubSubSink, PubSubStream};

use super::Fault;

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

    /// On return everything that is told there is heard.
    pub async fn subscribe(&mut self, channel: &str) -> Result<(), Fault> {
        within(self.timeout, self.sink.subscribe(channel)).await
    }

    pub async fn unsubscribe(&mut self, channel: &str) -> Result<(), Fault> {
        within(self.timeout, self.sink.unsubscribe(channel)).await
    }

    /// Does the other side still answer?
    pub async fn ping(&mut self) -> Result<(), Fault> {
        within(self.timeout, async { self.sink.ping::<redis::Value>().await.map(|_| ()) }).await
    }

    /// The next message: its channel, and what it says. `None` when the connection is lost.
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
