//! One task per process renews its leases. No error ends it: while Redis is unavailable it keeps retrying, and it marks
//! leases as lost when their time is over.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::core::{Core, MAX_RENEWALS_PER_CALL};
use super::held::Acquisition;
use super::watchlist::Place;
use super::{LeaseError, Renewal};
use crate::link::Fault;

/// Renewal calls under way at once. Leases beyond these wait.
const MAX_CALLS: usize = 16;

/// How soon a failed renewal is retried, unless the lease expires first.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The shortest timeout of a renewal, and the shortest pause before a retry.
const SHORTEST: Duration = Duration::from_millis(1);

/// How soon acquisitions that found every call in use are looked at again.
const BUSY_RETRY: Duration = Duration::from_millis(10);

/// The acquisitions that one call renews, all of one scope.
type Call = Vec<(Place, Arc<Acquisition>)>;
/// A call, and for each acquisition whether it is still held.
type Renewed = (Call, Result<Vec<bool>, LeaseError>);

/// Runs until `end` is cancelled or the last handle and guard are gone.
pub(super) async fn watch(core: Weak<Core>, end: CancellationToken) {
    let Some(nudge) = core.upgrade().map(|core| core.watchdog.clone()) else { return };
    let mut renewals = FuturesUnordered::new();
    loop {
        let Some(next) = core.upgrade().map(|core| core.watchlist.next()) else { return };
        // With every call in use, due acquisitions wait until a reply arrives.
        let next = if renewals.len() >= MAX_CALLS { None } else { next };
        tokio::select! {
            () = end.cancelled() => return,
            () = nudge.notified() => {}
            Some((acquisitions, answer)) = renewals.next() => {
                let Some(core) = core.upgrade() else { return };
                record(&core, acquisitions, answer);
            }
            () = sleep_until(next) => {
                let Some(core) = core.upgrade() else { return };
                for acquisitions in take_due(&core) {
                    if renewals.len() >= MAX_CALLS {
                        for (place, _) in acquisitions {
                            core.watchlist.again(place, Instant::now() + BUSY_RETRY);
                        }
                        continue;
                    }
                    renewals.push(renew(core.clone(), acquisitions));
                }
            }
        }
    }
}

async fn sleep_until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

async fn renew(core: Arc<Core>, acquisitions: Call) -> Renewed {
    let held: Vec<_> = acquisitions.iter().map(|(_, held)| held.clone()).collect();
    // Times out when the first of them expires, because its loss must be reported then.
    let now = Instant::now();
    let left = held.iter().filter_map(|held| held.ends()).map(|ends| ends.saturating_duration_since(now));
    let timeout = left.min().unwrap_or(RETRY_AFTER).max(SHORTEST);
    let answer = match tokio::time::timeout(timeout, core.renew(&held)).await {
        Ok(answer) => answer,
        Err(_) => Err(Fault::Late(format!("no reply within {timeout:?}")).into()),
    };
    (acquisitions, answer)
}

/// The renewals that are due now, grouped into calls. Marks expired acquisitions as lost.
fn take_due(core: &Core) -> Vec<Call> {
    let now = Instant::now();
    let mut calls: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for (place, held) in core.watchlist.take_due(now) {
        if held.is_over(now) {
            core.watchlist.leave(place);
        } else if held.options.renewal() == Renewal::Manual {
            core.watchlist.again(place, held.next_look(now));
        } else {
            let calls = calls.entry(held.scope.clone()).or_default();
            let leases = |call: &Call| call.iter().map(|(_, held)| held.names.len()).sum::<usize>();
            match calls.last_mut() {
                Some(call) if leases(call) + held.names.len() <= MAX_RENEWALS_PER_CALL => {
                    call.push((place, held));
                }
                _ => calls.push(vec![(place, held)]),
            }
        }
    }
    calls.into_values().flatten().collect()
}

/// Puts each acquisition back on the list, or marks it as lost.
fn record(core: &Core, acquisitions: Call, answer: Result<Vec<bool>, LeaseError>) {
    let now = Instant::now();
    match answer {
        Ok(kept) => {
            for ((place, held), kept) in acquisitions.into_iter().zip(kept) {
                if kept {
                    core.watchlist.again(place, held.next_look(now));
                } else if core.watchlist.leave(place) {
                    held.lose("taken");
                }
                // One that has left the list was released, so Redis is right not to know it.
            }
        }
        Err(error) => {
            tracing::debug!(%error, acquisitions = acquisitions.len(), "leases not renewed; retrying");
            metrics::counter!("doorbuster_lease_renewals_failed_total").increment(1);
            for (place, held) in acquisitions {
                let left = held.ends().map_or(Duration::ZERO, |ends| ends.saturating_duration_since(now));
                core.watchlist.again(place, now + RETRY_AFTER.min(left / 2).max(SHORTEST));
            }
        }
    }
}
