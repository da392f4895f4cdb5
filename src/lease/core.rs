//! What all handles and guards of one process share, and the requests that must not be given up
//! half way: each of them runs in a task of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;

use super::guard::{Guard, Held, Released};
use super::waiters::Waiters;
use super::watchlist::{Place, Watchlist};
use super::wire::{Extension, Said, Wire};
use super::{LeaseError, Renewal, Terms};
use crate::link::{Backoff, Fault};

/// Leases in one call of a renewal: Redis does nothing else meanwhile.
pub(super) const RENEWED_AT_ONCE: usize = 100;

/// A scope is told to those who look when it is used first, and again after this.
const TOLD_EVERY: Duration = Duration::from_secs(3600);

pub(super) struct Core {
    pub(super) wire: Wire,
    /// This process, for people.
    pub(super) holder: String,
    pub(super) watchlist: Watchlist<Held>,
    pub(super) watchdog: Arc<Notify>,
    pub(super) waiters: Waiters,
    pub(super) listener: Arc<Notify>,
    /// When each scope was told last.
    pub(super) told: Mutex<HashMap<String, Instant>>,
    pub(super) tasks: TaskTracker,
    pub(super) runtime: Handle,
    /// Ends watchdog and listener with the last handle and guard.
    pub(super) _end: DropGuard,
}

/// What one try to take found.
pub(super) struct Tried {
    pub(super) said: Vec<Said>,
    /// `None` where nothing was taken.
    pub(super) guard: Option<Guard>,
}

impl Core {
    /// The task goes on though nobody waits for it.
    pub(super) fn in_background<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn_on(work, &self.runtime)
    }

    /// One call of the script. Whoever gives up waiting for it leaves nothing behind: the call is
    /// carried to its end, and what it took is released.
    pub(super) async fn take(
        self: &Arc<Self>,
        scope: &str,
        names: Vec<String>,
        terms: Terms,
        all: bool,
    ) -> Result<Tried, LeaseError> {
        self.tell(scope);
        let (core, scope) = (self.clone(), scope.to_owned());
        let taking = self.in_background(async move { core.take_to_the_end(&scope, names, terms, all).await });
        taking.await.map_err(|_| LeaseError::Ending)?
    }

    async fn take_to_the_end(
        self: &Arc<Self>,
        scope: &str,
        names: Vec<String>,
        terms: Terms,
        all: bool,
    ) -> Result<Tried, LeaseError> {
        let owner = format!("{:032x}", rand::random::<u128>());
        // Counted from before the request: Redis starts to count later than this.
        let sent = Instant::now();
        match self.wire.take(scope, &owner, &self.holder, &names, &terms, all).await {
            Ok(said) => {
                let token = said.iter().find_map(|said| match said {
                    Said::Taken(token) => Some(*token),
                    _ => None,
                });
                let ours = |said: &Said| matches!(said, Said::Taken(_));
                let names = names.into_iter().zip(&said).filter(|(_, said)| ours(said)).map(|(name, _)| name);
                let guard = token.map(|token| {
                    Guard::new(self, Held::new((scope, owner), names.collect(), token, terms, sent))
                });
                Ok(Tried { said, guard })
            }
            Err(fault) => {
                // They may be taken: nobody has a guard of them, so nobody would release them.
                if matches!(fault, Fault::Late(_)) {
                    let held = Held::new((scope, owner), names, 0, terms, sent);
                    self.release_in_background(Arc::new(held));
                }
                Err(fault.into())
            }
        }
    }

    /// Puts it on the watchdog's list.
    pub(super) fn watch(&self, held: &Arc<Held>) -> Place {
        let (place, first) = self.watchlist.enter(held.clone(), next_look(held, Instant::now()));
        if first {
            self.watchdog.notify_one();
        }
        place
    }

    /// For each acquisition, all of one scope: were all its leases still held? Calls of at most
    /// [`RENEWED_AT_ONCE`] leases. May be repeated.
    pub(super) async fn renew(&self, acquisitions: &[Arc<Held>]) -> Result<Vec<bool>, LeaseError> {
        let sent = Instant::now();
        let Some(scope) = acquisitions.first().map(|held| held.scope.as_str()) else { return Ok(Vec::new()) };
        let leases: Vec<Extension> =
            acquisitions.iter().flat_map(|held| held.extensions(held.extension(sent))).collect();
        let mut kept = Vec::with_capacity(leases.len());
        for leases in leases.chunks(RENEWED_AT_ONCE) {
            kept.extend(self.wire.renew(scope, leases).await?);
        }
        metrics::counter!("leases_renewed_total").increment(leases.len() as u64);
        let mut kept = kept.as_slice();
        Ok(acquisitions
            .iter()
            .map(|held| {
                let (ours, others) = kept.split_at(held.names.len().min(kept.len()));
                kept = others;
                let all = ours.len() == held.names.len() && ours.iter().all(|kept| *kept);
                if all {
                    held.extended(sent + held.extension(sent));
                } else {
                    held.lose("taken");
                }
                all
            })
            .collect())
    }

    /// After an error it is tried again in the background, until the leases end by themselves.
    pub(super) async fn release(self: &Arc<Self>, held: &Arc<Held>) -> Result<Released, LeaseError> {
        match self.release_once(held).await {
            Ok(true) => Ok(Released::Freed),
            Ok(false) => Ok(Released::Late),
            // Once more at once: the connection may have been lost while it lay idle.
            Err(first) => match self.release_once(held).await {
                // What is free by now may be what the first try freed.
                Ok(all) if all || matches!(first, Fault::Late(_)) => Ok(Released::Freed),
                Ok(_) => Ok(Released::Late),
                Err(fault) => {
                    self.release_in_background(held.clone());
                    Err(fault.into())
                }
            },
        }
    }

    async fn release_once(&self, held: &Held) -> Result<bool, Fault> {
        let must_stay = held.terms.must_stay();
        let kept = self.wire.release(&held.scope, &held.owner, must_stay, &held.names).await?;
        Ok(kept.into_iter().all(|kept| kept))
    }

    fn release_in_background(self: &Arc<Self>, held: Arc<Held>) {
        let core = self.clone();
        drop(self.in_background(async move {
            let mut backoff = Backoff::default();
            while Instant::now() < held.ends() && core.release_once(&held).await.is_err() {
                tokio::time::sleep(backoff.delay()).await;
            }
        }));
    }

    /// Lets those who look know of the scope. Nobody waits for it.
    fn tell(self: &Arc<Self>, scope: &str) {
        let now = Instant::now();
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.get(scope).is_some_and(|told| now.duration_since(*told) < TOLD_EVERY) {
                return;
            }
            told.retain(|_, told| now.duration_since(*told) < TOLD_EVERY);
            told.insert(scope.to_owned(), now);
        }
        let (core, scope) = (self.clone(), scope.to_owned());
        drop(self.in_background(async move {
            if core.wire.remember_scope(&scope).await.is_err() {
                core.told.lock().unwrap_or_else(PoisonError::into_inner).remove(&scope);
            }
        }));
    }
}

/// When the watchdog looks at it: after a third of the lease, or when nothing is left to be done but
/// to say that it is lost. Times are rounded down to a fifteenth of the lease, so that leases which
/// were taken one by one are renewed together.
pub(super) fn next_look(held: &Held, now: Instant) -> Instant {
    let ends = held.ends();
    let renewal = match held.terms.renewal() {
        Renewal::ByHand => ends,
        Renewal::Watchdog { .. } => {
            let lasts = held.terms.lasts();
            now + lasts / 3 - since_the_grid(now + lasts / 3, lasts / 15)
        }
    };
    renewal.min(ends).min(held.until.unwrap_or(ends))
}

/// How far a time is beyond the last multiple of `step`, counted from a time that is the same for
/// all leases of the process.
fn since_the_grid(time: Instant, step: Duration) -> Duration {
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let since = time.saturating_duration_since(*BEGIN.get_or_init(Instant::now));
    match step.as_nanos() {
        0 => Duration::ZERO,
        step => Duration::from_nanos((since.as_nanos() % step).try_into().unwrap_or(0)),
    }
}
