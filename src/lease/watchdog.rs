//! One task per process keeps its leases alive. No error ends it: while Redis is away it goes on
//! trying, and a lease whose time is over is told to be lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::core::{Core, RENEWED_AT_ONCE, next_look};
use super::guard::Held;
use super::watchlist::Place;
use super::{Fault, LeaseError, Renewal};

/// Renewals without an answer. With more leases than these can carry, the others wait.
const AT_ONCE: usize = 16;

/// How soon a renewal that failed is tried again, unless the lease ends before.
const AGAIN: Duration = Duration::from_secs(1);

/// Nearer to its end than this a lease is not tried again.
const SOONEST: Duration = Duration::from_millis(1);

/// When a list that could not be served is looked at again.
const BUSY: Duration = Duration::from_millis(10);

/// What one call renews: acquisitions of one scope.
type Call = Vec<(Place, Arc<Held>)>;
type Answer = (Call, Result<Vec<bool>, LeaseError>);

pub(super) async fn watch(core: Weak<Core>, end: CancellationToken) {
    let Some(nudge) = core.upgrade().map(|core| core.watchdog.clone()) else { return };
    let mut renewals = FuturesUnordered::new();
    loop {
        let Some(next) = core.upgrade().map(|core| core.watchlist.next()) else { return };
        // Full: what is due waits until one of the renewals has been answered.
        let next = if renewals.len() >= AT_ONCE { None } else { next };
        tokio::select! {
            () = end.cancelled() => return,
            () = nudge.notified() => {}
            Some((acquisitions, answer)) = renewals.next() => {
                let Some(core) = core.upgrade() else { return };
                answered(&core, acquisitions, answer);
            }
            () = until(next) => {
                let Some(core) = core.upgrade() else { return };
                for acquisitions in due(&core) {
                    if renewals.len() >= AT_ONCE {
                        for (place, _) in acquisitions {
                            core.watchlist.again(place, Instant::now() + BUSY);
                        }
                        continue;
                    }
                    renewals.push(renew(core.clone(), acquisitions));
                }
            }
        }
    }
}

async fn until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next.into()).await,
        None => std::future::pending().await,
    }
}

async fn renew(core: Arc<Core>, acquisitions: Call) -> Answer {
    let held: Vec<_> = acquisitions.iter().map(|(_, held)| held.clone()).collect();
    // Not for longer than the first of them lasts: then it has to be told.
    let now = Instant::now();
    let left = held.iter().filter_map(|held| held.ends()).map(|ends| ends.saturating_duration_since(now));
    let patience = left.min().unwrap_or(AGAIN).max(SOONEST);
    let answer = match tokio::time::timeout(patience, core.renew(&held)).await {
        Ok(answer) => answer,
        Err(_) => Err(Fault::Late(format!("no reply within {patience:?}")).into()),
    };
    (acquisitions, answer)
}

/// What has to be renewed now, a call each; what is over is told to be lost.
fn due(core: &Core) -> Vec<Call> {
    let now = Instant::now();
    let mut calls: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for (place, held) in core.watchlist.take_due(now) {
        if held.is_over(now) {
            core.watchlist.leave(place);
        } else if held.options.renewal() == Renewal::Manual {
            core.watchlist.again(place, next_look(&held, now));
        } else {
            let calls = calls.entry(held.scope.clone()).or_default();
            let leases = |call: &Call| call.iter().map(|(_, held)| held.names.len()).sum::<usize>();
            match calls.last_mut() {
                Some(call) if leases(call) + held.names.len() <= RENEWED_AT_ONCE => call.push((place, held)),
                _ => calls.push(vec![(place, held)]),
            }
        }
    }
    calls.into_values().flatten().collect()
}

fn answered(core: &Core, acquisitions: Call, answer: Result<Vec<bool>, LeaseError>) {
    let now = Instant::now();
    match answer {
        Ok(kept) => {
            for ((place, held), kept) in acquisitions.into_iter().zip(kept) {
                if kept {
                    core.watchlist.again(place, next_look(&held, now));
                } else if core.watchlist.leave(place) {
                    held.lose("taken");
                }
                // One that has left meanwhile was released: that Redis does not know it is right.
            }
        }
        Err(error) => {
            tracing::debug!(%error, acquisitions = acquisitions.len(), "leases not renewed; trying again");
            metrics::counter!("lease_renewals_failed_total").increment(1);
            for (place, held) in acquisitions {
                let left = held.ends().map_or(Duration::ZERO, |ends| ends.saturating_duration_since(now));
                core.watchlist.again(place, now + AGAIN.min(left / 2).max(SOONEST));
            }
        }
    }
}
