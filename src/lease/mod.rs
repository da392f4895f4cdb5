//! Who may act for a user now? A lease: a name in Redis with an owner, an end and a fencing token.
//!
//! A lease makes contention cheap; it does not make anything correct by itself. A holder that was
//! stopped for longer than its lease still believes that it holds it: therefore each acquisition
//! carries a token that is higher than all before, and what is protected has to refuse a lower one.
//!
//! Released by its owner only, and always ended by time, on Redis's clock: nothing scans for stuck
//! leases. A process judges its own leases by its monotonic clock, from before the request.

mod core;
mod guard;
mod inspect;
mod listener;
mod sync;
mod terms;
mod waiters;
mod watchdog;
mod watchlist;
mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::core::Core;
pub use self::guard::{Guard, Released};
pub use self::inspect::Lease;
pub use self::terms::{Renewal, Terms};
use self::waiters::Waiter;
use self::wire::{Said, Wire};
pub use crate::link::Fault;
use crate::link::{Backoff, RedisLink, RedisSettings};

/// What can be wrong with a lease.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeaseError {
    /// Where it says that no answer came, leases may have been taken; they are released in the
    /// background as soon as Redis answers, or else end by themselves.
    #[error(transparent)]
    Redis(#[from] Fault),
    #[error("{0}")]
    Invalid(String),
    /// The work is no longer protected.
    #[error("the lease on {names} in {scope} is lost")]
    Lost { scope: String, names: String },
    #[error("the process is ending")]
    Ending,
}

/// Takes leases, keeps them alive and gives them back. Cheap to clone; one per process is enough,
/// and all clones share one watchdog.
#[derive(Clone)]
pub struct Leases {
    core: Arc<Core>,
}

/// The answer to [`Leases::take`].
pub struct Taken {
    /// One entry per name asked for, in that order: is it ours?
    pub held: Vec<bool>,
    /// `None` where no name was free.
    pub guard: Option<Guard>,
}

/// Names in one call, at most.
pub const NAMES_AT_ONCE: usize = 1_000;

/// Between two looks of somebody who waits and is not told anything; half of it is random.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Leases {
    /// Must be called inside a tokio runtime, in which everything of the leases will run. Does not
    /// wait for Redis. `prefix` begins every key.
    pub fn open(redis: &RedisSettings, prefix: &str) -> Result<Self, LeaseError> {
        let end = CancellationToken::new();
        let core = Arc::new(Core {
            wire: Wire::new(RedisLink::open(redis)?, prefix),
            holder: holder(),
            watchlist: Default::default(),
            watchdog: Default::default(),
            waiters: Default::default(),
            listener: Default::default(),
            told: Default::default(),
            tasks: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
            _end: end.clone().drop_guard(),
        });
        tokio::spawn(watchdog::watch(Arc::downgrade(&core), end.clone()));
        tokio::spawn(listener::listen(Arc::downgrade(&core), end));
        Ok(Self { core })
    }

    /// Takes those of `names` that are free, in one round trip, and waits for none. All get the same
    /// owner and token, and one guard. `scope` is the hash tag: names of one scope lie in one slot of
    /// a Redis Cluster, and tokens rise within it.
    ///
    /// Dropping the future leaves nothing behind: what was taken is released.
    pub async fn take<'a>(
        &self,
        scope: &str,
        names: impl IntoIterator<Item = &'a str>,
        terms: Terms,
    ) -> Result<Taken, LeaseError> {
        let tried = self.core.take(scope, checked(scope, names, &terms)?, terms, false).await?;
        let held = tried.said.iter().map(|said| matches!(said, Said::Taken(_))).collect();
        Ok(Taken { held, guard: tried.guard })
    }

    /// Takes all of `names` or none; waits up to `within` until they are free together. `None` where
    /// they were not. It holds none while it waits for another, so two who want the same names in
    /// another order do not wait for each other.
    ///
    /// Whoever waits is told of each release, and looks by himself when the lease ends, at least
    /// once a second. There is no order among those who wait. While Redis is away it goes on trying;
    /// an error is answered when the time is over.
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn acquire<'a>(
        &self,
        scope: &str,
        names: impl IntoIterator<Item = &'a str>,
        terms: Terms,
        within: Duration,
    ) -> Result<Option<Guard>, LeaseError> {
        let names = checked(scope, names, &terms)?;
        let deadline = Instant::now() + within;
        let mut waiter: Option<Waiter> = None;
        let mut backoff = Backoff::default();
        loop {
            let pause = match self.core.take(scope, names.clone(), terms, true).await {
                Ok(tried) if tried.guard.is_some() => {
                    waiter.into_iter().for_each(Waiter::satisfied);
                    return Ok(tried.guard);
                }
                Ok(tried) => {
                    backoff.reset();
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                    let (name, ends_in) = busy(&names, &tried.said, waiter.as_ref())?;
                    if !waiter.as_ref().is_some_and(|waiter| waiter.waits_for(name)) {
                        // Tries once more from within the line, before it sleeps.
                        waiter = Some(self.core.waiters.enter(scope, name));
                        self.core.listener.notify_one();
                        continue;
                    }
                    ends_in.min(LOOK_EVERY.mul_f64(rand::rng().random_range(0.5..=1.0)))
                }
                Err(error @ (LeaseError::Invalid(_) | LeaseError::Ending)) => return Err(error),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => backoff.delay(),
            };
            let pause = pause.min(deadline.saturating_duration_since(Instant::now()));
            let woken = async {
                match &mut waiter {
                    Some(waiter) => waiter.woken().await,
                    None => std::future::pending().await,
                }
            };
            // Woken or not, it looks.
            let _ = tokio::time::timeout(pause.max(Duration::from_millis(1)), woken).await;
        }
    }

    /// Acquisitions that are alive in this process.
    pub fn held(&self) -> usize {
        self.core.watchlist.len()
    }

    /// Those in this process who wait in [`Leases::acquire`].
    pub fn waiting(&self) -> usize {
        self.core.waiters.len()
    }

    /// Returns when nothing is being taken or released in the background any more. Before a process
    /// ends: what it has dropped is then free, and need not end by itself.
    pub async fn at_rest(&self) {
        while !self.core.tasks.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The name to wait for: the one that was waited for, or else the one that lasts longest.
fn busy<'a>(
    names: &'a [String],
    said: &[Said],
    waiter: Option<&Waiter>,
) -> Result<(&'a str, Duration), LeaseError> {
    let busy = names.iter().zip(said).filter_map(|(name, said)| match said {
        Said::Busy(left) => Some((name.as_str(), *left)),
        _ => None,
    });
    busy.max_by_key(|(name, left)| (waiter.is_some_and(|waiter| waiter.waits_for(name)), *left))
        .ok_or_else(|| Fault::Broken(format!("no lease was given, and none is held: {said:?}")).into())
}

fn checked<'a>(
    scope: &str,
    names: impl IntoIterator<Item = &'a str>,
    terms: &Terms,
) -> Result<Vec<String>, LeaseError> {
    check_scope(scope)?;
    terms.check()?;
    let names: Vec<String> =
        names.into_iter().map(|name| check_name(name).map(|()| name.to_owned())).collect::<Result<_, _>>()?;
    if names.is_empty() || names.len() > NAMES_AT_ONCE {
        return Err(LeaseError::Invalid(format!(
            "{} names in one call: it takes from 1 to {NAMES_AT_ONCE}",
            names.len()
        )));
    }
    Ok(names)
}

fn check_scope(scope: &str) -> Result<(), LeaseError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:@-".contains(c);
    if (1..=64).contains(&scope.len()) && scope.chars().all(allowed) {
        return Ok(());
    }
    Err(LeaseError::Invalid(format!("{scope:?} is no scope: 1 to 64 of A-Z, a-z, 0-9 and . _ : @ -")))
}

fn check_name(name: &str) -> Result<(), LeaseError> {
    let allowed = |c: char| c.is_ascii_graphic() && c != '|';
    if (1..=200).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(LeaseError::Invalid(format!(
        "{name:?} is no name for a lease: 1 to 200 visible ASCII characters without a bar"
    )))
}

/// This process, for people who look at leases.
fn holder() -> String {
    let name = rustix::system::uname();
    let machine: String =
        name.nodename().to_string_lossy().chars().filter(|c| c.is_ascii_graphic() && *c != '|').collect();
    format!("{}@{machine}", std::process::id())
}
