//! One connection per listener on which Redis announces what has happened, open only while somebody listens. A missed
//! announcement must cost no more than time.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::channels::Channels;
use super::error::Fault;
use super::redis::RedisLink;

/// How long a channel stays subscribed after the last who listened has gone.
const LINGER: Duration = Duration::from_secs(1);

/// Hears what Redis announces.
pub trait Listener: Send + Sync + 'static {
    /// What is announced, for messages to people.
    const WHAT: &'static str;

    /// The channels to which somebody listens now.
    fn channels(&self) -> Vec<String>;

    /// A message on one of the channels.
    fn hear(&self, channel: &str, message: &str);

    /// Messages on this channel may have been missed: until now it was not subscribed.
    fn catch_up(&self, channel: &str);
}

/// Listens until `end` is cancelled or the listener is dropped. `nudge` is notified when somebody begins to listen.
pub async fn listen<L: Listener>(
    listener: Weak<L>,
    nudge: Arc<Notify>,
    link: RedisLink,
    end: CancellationToken,
) {
    let mut backoff = Backoff::default();
    loop {
        if nobody_listens(&listener) && end.run_until_cancelled(nudge.notified()).await.is_none() {
            return;
        }
        if listener.strong_count() == 0 {
            return;
        }
        let heard = async { hear(&listener, &nudge, link.channels().await?, &mut backoff).await };
        let Some(heard) = end.run_until_cancelled(heard).await else { return };
        if let Err(error) = heard {
            if backoff.tries() == 0 {
                tracing::warn!(%error, "cannot subscribe to {}; they are polled meanwhile", L::WHAT);
            }
            if end.run_until_cancelled(tokio::time::sleep(backoff.delay())).await.is_none() {
                return;
            }
        }
    }
}

fn nobody_listens<L: Listener>(listener: &Weak<L>) -> bool {
    listener.upgrade().is_none_or(|listener| listener.channels().is_empty())
}

/// Passes on what is announced. Returns when nobody listens any more.
async fn hear<L: Listener>(
    listener: &Weak<L>,
    nudge: &Notify,
    mut channels: Channels,
    backoff: &mut Backoff,
) -> Result<(), Fault> {
    let mut heard: BTreeSet<String> = BTreeSet::new();
    let mut tick = tokio::time::interval(LINGER);
    loop {
        let Some(wanted) = listener.upgrade().map(|listener| listener.channels()) else { return Ok(()) };
        for channel in wanted {
            if !heard.contains(&channel) {
                channels.subscribe(&channel).await?;
                backoff.reset();
                if let Some(listener) = listener.upgrade() {
                    listener.catch_up(&channel);
                }
                heard.insert(channel);
            }
        }
        tokio::select! {
            message = channels.next() => {
                let Some((channel, message)) = message else {
                    return Err(Fault::Unavailable("the connection was lost".into()));
                };
                let Some(listener) = listener.upgrade() else { return Ok(()) };
                listener.hear(&channel, &message);
            }
            () = nudge.notified() => {}
            _ = tick.tick() => {
                // A connection that died unnoticed would stay silent for ever.
                channels.ping().await?;
                let Some(wanted) = listener.upgrade().map(|listener| listener.channels()) else { return Ok(()) };
                for channel in heard.extract_if(.., |channel| !wanted.contains(channel)) {
                    channels.unsubscribe(&channel).await?;
                }
                if wanted.is_empty() {
                    return Ok(());
                }
            }
        }
    }
}
