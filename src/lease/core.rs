//! The state that all handles and guards of one process share, and the requests that must not be abandoned
//! halfway: each of them runs in a background task.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;

use super::LeaseError;
use super::held::Acquisition;
use super::sightings::Sightings;
use super::waiters::Waiters;
use super::watchlist::{Place, Watchlist};
use super::wire::{Extension, Wire};
use crate::link::{Backoff, Fault};

/// Leases in one renewal call: Redis does nothing else while it runs.
pub(super) const MAX_RENEWALS_PER_CALL: usize = 100;

/// How often a scope that is in use is recorded again for `lease list`.
const SCOPE_RECORDED_EVERY: Duration = Duration::from_secs(3600);

pub(super) struct Core {
    pub(super) wire: Wire,
    /// Names this process to people.
    pub(super) holder: String,
    pub(super) watchlist: Watchlist<Acquisition>,
    /// Wakes the watchdog when an acquisition becomes the first on the list.
    pub(super) watchdog: Arc<Notify>,
    pub(super) waiters: Waiters,
    pub(super) sightings: Sightings,
    /// Wakes the listener when somebody starts to wait.
    pub(super) listener: Arc<Notify>,
    /// When each scope was last recorded in Redis.
    pub(super) scopes_recorded: Mutex<HashMap<String, Instant>>,
    pub(super) tasks: TaskTracker,
    pub(super) runtime: Handle,
    /// Ends watchdog and listener when the last handle and guard are dropped.
    pub(super) _end: DropGuard,
}

/// The result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// All leases were still held. They are free now, or stay taken until their minimum hold is over.
    Freed,
    /// At least one had expired or was lost, so the last part of the work was not protected. Leases that others
    /// hold by now were left alone.
    Late,
    /// Another guard of the acquisition still holds the leases.
    Shared,
}

impl Core {
    /// The task runs to its end even if nobody waits for it.
    pub(super) fn in_background<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn_on(work, &self.runtime)
    }

    /// Puts the acquisition on the watchdog's list.
    pub(super) fn watch(&self, held: &Arc<Acquisition>) -> Place {
        let (place, first) = self.watchlist.enter(held.clone(), held.next_look(Instant::now()));
        if first {
            self.watchdog.notify_one();
        }
        place
    }

    /// Renews acquisitions of one scope, in calls of at most [`MAX_RENEWALS_PER_CALL`] leases. Returns for each whether
    /// all of its leases were still held. May be repeated.
    pub(super) async fn renew(
        self: &Arc<Self>,
        acquisitions: &[Arc<Acquisition>],
    ) -> Result<Vec<bool>, LeaseError> {
        let sent = Instant::now();
        let Some(scope) = acquisitions.first().map(|held| held.scope.as_str()) else { return Ok(Vec::new()) };
        self.record_scope(scope);
        let leases: Vec<Extension> = acquisitions.iter().flat_map(|held| held.extensions(sent)).collect();
        let calls = leases.chunks(MAX_RENEWALS_PER_CALL).map(|leases| self.wire.renew(scope, leases));
        let kept = futures_util::future::try_join_all(calls).await?.concat();
        metrics::counter!("doorbuster_leases_renewed_total").increment(leases.len() as u64);
        let mut kept = kept.as_slice();
        Ok(acquisitions
            .iter()
            .map(|held| {
                let (own, others) = kept.split_at(held.names.len().min(kept.len()));
                kept = others;
                let all = own.len() == held.names.len() && own.iter().all(|kept| *kept);
                all && held.record_renewal(sent + held.extension(sent))
            })
            .collect())
    }

    /// Releases the acquisition; each lease stays taken until `min_hold` after it was taken. After an error the
    /// release is retried in the background until the leases have expired.
    pub(super) async fn release(
        self: &Arc<Self>,
        held: &Arc<Acquisition>,
        min_hold: Duration,
    ) -> Result<Released, LeaseError> {
        let in_time = !held.is_over(Instant::now());
        let found = |all: bool| if all { Released::Freed } else { Released::Late };
        match self.release_once(held, min_hold).await {
            Ok(released) => Ok(found(in_time && released.into_iter().all(|released| released))),
            // Retry once right away: an idle connection may have been lost.
            Err(first) => match self.release_once(held, min_hold).await {
                // A lease that is free by now may have been freed by the first try.
                Ok(_) if matches!(first, Fault::Late(_)) => Ok(found(in_time)),
                Ok(released) => Ok(found(in_time && released.into_iter().all(|released| released))),
                Err(fault) => {
                    // A renewal whose reply was lost may have extended the leases beyond what is known here.
                    let longest = held.options.initial_duration() + held.options.duration();
                    self.release_in_background(held.clone(), min_hold, Instant::now() + longest, |_| true);
                    Err(fault.into())
                }
            },
        }
    }

    async fn release_once(&self, held: &Acquisition, min_hold: Duration) -> Result<Vec<bool>, Fault> {
        self.wire.release(&held.scope, &held.owner, min_hold, &held.names).await
    }

    /// Retries the release until an answer from Redis satisfies `is_enough`, or until the leases have expired.
    pub(super) fn release_in_background(
        self: &Arc<Self>,
        held: Arc<Acquisition>,
        min_hold: Duration,
        until: Instant,
        is_enough: impl Fn(&[bool]) -> bool + Send + 'static,
    ) {
        let core = self.clone();
        drop(self.in_background(async move {
            let mut backoff = Backoff::default();
            while Instant::now() < until {
                if core.release_once(&held, min_hold).await.is_ok_and(|released| is_enough(&released)) {
                    return;
                }
                tokio::time::sleep(backoff.delay()).await;
            }
        }));
    }

    /// Records in the background that leases are taken in the scope, unless that was done recently.
    pub(super) fn record_scope(self: &Arc<Self>, scope: &str) {
        let now = Instant::now();
        let recent = |recorded: &Instant| now.duration_since(*recorded) < SCOPE_RECORDED_EVERY;
        {
            let mut recorded = self.scopes_recorded.lock().unwrap_or_else(PoisonError::into_inner);
            if recorded.get(scope).is_some_and(recent) {
                return;
            }
            recorded.retain(|_, recorded| recent(recorded));
            recorded.insert(scope.to_owned(), now);
        }
        let (core, scope) = (self.clone(), scope.to_owned());
        drop(self.in_background(async move {
            if core.wire.record_scope(&scope).await.is_err() {
                core.scopes_recorded.lock().unwrap_or_else(PoisonError::into_inner).remove(&scope);
            }
        }));
    }
}

/// The result of a background task. A panic in the task continues in its caller.
pub(super) fn joined<T>(result: Result<T, tokio::task::JoinError>) -> Result<T, LeaseError> {
    result.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => LeaseError::ShuttingDown,
    })
}
