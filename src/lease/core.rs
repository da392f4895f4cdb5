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
use super::wire::{Extension, Request, Said, Wire};
use super::{LeaseError, Renewal};
use crate::link::{Backoff, Fault};

/// Leases in one call of a renewal: Redis does nothing else meanwhile.
pub(super) const RENEWED_AT_ONCE: usize = 100;

/// For how long a request without an answer may still arrive: connections are given up long before.
const ON_ITS_WAY: Duration = Duration::from_secs(60);

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
    pub(super) async fn take(self: &Arc<Self>, request: Request) -> Result<Tried, LeaseError> {
        self.tell(&request.scope);
        let core = self.clone();
        // Counted as a task for as long as its answer lies there: see `Leases::wait_until_idle`.
        let counted = self.tasks.token();
        let taking = self.in_background(async move {
            let tried = core.take_to_the_end(request).await;
            (tried, counted)
        });
        let (tried, _counted) = ended(taking.await)?;
        let Tried { said, guard } = tried?;
        Ok(Tried { said, guard: guard.map(Guard::given) })
    }

    async fn take_to_the_end(self: &Arc<Self>, request: Request) -> Result<Tried, LeaseError> {
        let owner = format!("{:032x}", rand::random::<u128>());
        // Counted from before the request: Redis starts to count later than this.
        let sent = Instant::now();
        let answer = self.wire.take(&request, &owner, &self.holder).await;
        let Request { scope, names, options, .. } = request;
        match answer {
            Ok(said) => {
                let token = said.iter().find_map(|said| match said {
                    Said::Taken(token) => Some(*token),
                    _ => None,
                });
                let ours = |said: &Said| matches!(said, Said::Taken(_));
                let names = names.into_iter().zip(&said).filter(|(_, said)| ours(said)).map(|(name, _)| name);
                let guard = token.map(|token| {
                    Guard::new(self, Held::new((&scope, owner), names.collect(), token, options, sent))
                });
                Ok(Tried { said, guard })
            }
            Err(fault) => {
                // They may be taken: nobody has a guard of them, so nobody would release them.
                if !matches!(fault, Fault::Unavailable(_) | Fault::Full(_) | Fault::NoScript) {
                    let held = Held::new((&scope, owner), names, 0, options.without_min_hold(), sent);
                    // Until it has found one, or the request cannot be on its way any more.
                    let until = sent + options.initial_duration().min(ON_ITS_WAY);
                    self.release_in_background(held.into(), Duration::ZERO, until, |released| {
                        released.contains(&true)
                    });
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
    pub(super) async fn renew(self: &Arc<Self>, acquisitions: &[Arc<Held>]) -> Result<Vec<bool>, LeaseError> {
        let sent = Instant::now();
        let Some(scope) = acquisitions.first().map(|held| held.scope.as_str()) else { return Ok(Vec::new()) };
        self.tell(scope);
        let leases: Vec<Extension> =
            acquisitions.iter().flat_map(|held| held.extensions(held.extension(sent))).collect();
        let calls = leases.chunks(RENEWED_AT_ONCE).map(|leases| self.wire.renew(scope, leases));
        let kept = futures_util::future::try_join_all(calls).await?.concat();
        metrics::counter!("leases_renewed_total").increment(leases.len() as u64);
        let mut kept = kept.as_slice();
        Ok(acquisitions
            .iter()
            .map(|held| {
                let (ours, others) = kept.split_at(held.names.len().min(kept.len()));
                kept = others;
                let all = ours.len() == held.names.len() && ours.iter().all(|kept| *kept);
                all && held.extended(sent + held.extension(sent))
            })
            .collect())
    }

    /// After an error it is tried again in the background, until the leases end by themselves.
    pub(super) async fn release(
        self: &Arc<Self>,
        held: &Arc<Held>,
        must_stay: Duration,
    ) -> Result<Released, LeaseError> {
        let in_time = !held.is_over(Instant::now());
        let found = |all: bool| if all { Released::Freed } else { Released::Late };
        match self.release_once(held, must_stay).await {
            Ok(released) => Ok(found(in_time && released.into_iter().all(|released| released))),
            // Once more at once: the connection may have been lost while it lay idle.
            Err(first) => match self.release_once(held, must_stay).await {
                // What is free by now may be what the first try freed.
                Ok(_) if matches!(first, Fault::Late(_)) => Ok(found(in_time)),
                Ok(released) => Ok(found(in_time && released.into_iter().all(|released| released))),
                Err(fault) => {
                    // A renewal without an answer may have made them last for longer than is known.
                    let until = Instant::now() + held.options.initial_duration() + held.options.duration();
                    self.release_in_background(held.clone(), must_stay, until, |_| true);
                    Err(fault.into())
                }
            },
        }
    }

    async fn release_once(&self, held: &Held, must_stay: Duration) -> Result<Vec<bool>, Fault> {
        self.wire.release(&held.scope, &held.owner, must_stay, &held.names).await
    }

    /// Until Redis gives an answer that is enough, or everything has ended by itself.
    fn release_in_background(
        self: &Arc<Self>,
        held: Arc<Held>,
        must_stay: Duration,
        until: Instant,
        is_enough: impl Fn(&[bool]) -> bool + Send + 'static,
    ) {
        let core = self.clone();
        drop(self.in_background(async move {
            let mut backoff = Backoff::default();
            while Instant::now() < until {
                if core.release_once(&held, must_stay).await.is_ok_and(|released| is_enough(&released)) {
                    return;
                }
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

/// What a task of the background has answered. A panic in it goes on in whoever waits for it.
pub(super) fn ended<T>(answer: Result<T, tokio::task::JoinError>) -> Result<T, LeaseError> {
    answer.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => LeaseError::Ending,
    })
}

/// When the watchdog looks at it: when two thirds of the lease are left, or when nothing is left to be
/// done but to say that it is lost. Times are rounded down to a fifteenth of the lease, so that
/// leases which were taken one by one are renewed together.
pub(super) fn next_look(held: &Held, now: Instant) -> Instant {
    let Some(ends) = held.ends() else { return now };
    let over = held.until.map_or(ends, |until| until.min(ends));
    if held.options.renewal() == Renewal::Manual || held.until.is_some_and(|until| until <= ends) {
        return over;
    }
    let lasts = held.options.duration();
    let renewal = ends.checked_sub(lasts / 3 * 2).unwrap_or(now);
    let renewal = renewal.checked_sub(since_the_grid(renewal, lasts / 15)).unwrap_or(now);
    renewal.max(now).min(over)
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
