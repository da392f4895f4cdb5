//! One connection per process on which Redis announces freed names, open only while somebody waits. A missed message
//! costs only time, because waiters also look by themselves.

use std::collections::BTreeSet;
use std::sync::Weak;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::core::Core;
use crate::link::{Backoff, Channels, Fault};

/// How long a scope stays subscribed after its last waiter has gone.
const LINGER: Duration = Duration::from_secs(1);

/// Runs until `end` is cancelled or the last handle and guard are gone.
pub(super) async fn listen(core: Weak<Core>, end: CancellationToken) {
    let Some(nudge) = core.upgrade().map(|core| core.listener.clone()) else { return };
    let mut backoff = Backoff::default();
    loop {
        if nobody_waits(&core) && end.run_until_cancelled(nudge.notified()).await.is_none() {
            return;
        }
        let Some(link) = core.upgrade().map(|core| core.wire.link.clone()) else { return };
        let heard = async { hear(&core, &nudge, link.channels().await?, &mut backoff).await };
        let Some(heard) = end.run_until_cancelled(heard).await else { return };
        if let Err(error) = heard {
            if backoff.tries() == 0 {
                tracing::warn!(%error, "cannot subscribe to freed leases; waiters poll meanwhile");
            }
            if end.run_until_cancelled(tokio::time::sleep(backoff.delay())).await.is_none() {
                return;
            }
        }
    }
}

fn nobody_waits(core: &Weak<Core>) -> bool {
    core.upgrade().is_none_or(|core| core.waiters.scopes().is_empty())
}

/// Wakes waiters as names are freed. Returns when nobody waits any more.
async fn hear(
    core: &Weak<Core>,
    nudge: &Notify,
    mut channels: Channels,
    backoff: &mut Backoff,
) -> Result<(), Fault> {
    let mut heard: BTreeSet<String> = BTreeSet::new();
    let mut tick = tokio::time::interval(LINGER);
    loop {
        let Some(waiters) = core.upgrade().map(|core| core.waiters.clone()) else { return Ok(()) };
        for scope in waiters.scopes() {
            if !heard.contains(&scope) {
                channels.subscribe(&channel(core, &scope)).await?;
                backoff.reset();
                // Names that were freed before the subscription were not announced to it.
                waiters.wake_scope(&scope);
                heard.insert(scope);
            }
        }
        tokio::select! {
            message = channels.next() => {
                let Some((channel, names)) = message else {
                    return Err(Fault::Unavailable("the connection was lost".into()));
                };
                let Some(core) = core.upgrade() else { return Ok(()) };
                let Some(scope) = core.wire.scope(&channel) else { continue };
                for name in names.split(' ') {
                    waiters.wake(scope, name);
                }
            }
            () = nudge.notified() => {}
            _ = tick.tick() => {
                // A connection that died unnoticed would stay silent for ever.
                channels.ping().await?;
                let wanted = waiters.scopes();
                for scope in heard.extract_if(.., |scope| !wanted.contains(scope)) {
                    channels.unsubscribe(&channel(core, &scope)).await?;
                }
                if heard.is_empty() && waiters.scopes().is_empty() {
                    return Ok(());
                }
            }
        }
    }
}

fn channel(core: &Weak<Core>, scope: &str) -> String {
    core.upgrade().map(|core| core.wire.leases(scope)).unwrap_or_default()
}
