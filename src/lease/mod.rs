//! Who may act for a user now? A lease: a name in Redis with an owner, an end and a fencing token.
//! For the workers' users, for whatever must run once, and for programs that use this as a library.
//!
//! A lease makes contention cheap; it does not make anything correct by itself. A holder that was
//! stopped for longer than its lease still believes that it holds it: therefore each acquisition
//! carries a token that is higher than all before, and what is protected has to refuse a lower one.
//!
//! Released by its owner only, and always ended by time, on Redis's clock: nothing scans for stuck
//! leases. A process judges its own leases by its monotonic clock, from before the request. Where one
//! of the two clocks is set or stands still (a suspended machine), that judgement is wrong, and
//! the token alone holds.
//!
//! # Use
//!
//! ```no_run
//! # use std::time::Duration;
//! # use doorbuster::lease::{LeaseError, Leases, LeaseOptions};
//! # use doorbuster::link::RedisSettings;
//! # async fn pay(_fence: i64, _may_commit: impl Fn() -> bool) {}
//! # async fn example() -> Result<(), LeaseError> {
//! let redis = RedisSettings { url: "redis://127.0.0.1".into(), timeout: Duration::from_millis(500) };
//! let leases = Leases::open(&redis, "shop")?;
//!
//! // Waits up to five seconds. 30 s, renewed every 10 s by the watchdog, for at most 10 minutes.
//! let Some(guard) = leases.acquire("sale", ["ada"], LeaseOptions::default(), Duration::from_secs(5)).await?
//! else {
//!     return Ok(()); // Somebody else has it.
//! };
//! // Stops where the lease is lost. What is written carries the token, and the last question before
//! // COMMIT is whether the lease still lasts.
//! let may_commit = || guard.ensure_valid(Duration::from_secs(1)).is_ok();
//! guard.until_lost(pay(guard.token(), may_commit)).await?;
//! guard.release().await?;
//!
//! // Many at once: those that are free, in one round trip.
//! let taken = leases.take("sale", ["ada", "bob", "cy"], LeaseOptions::lasting(Duration::from_secs(5))).await?;
//! println!("{:?}", taken.held);
//!
//! // A job that every machine starts at midnight, and that one runs: the others find it taken, even
//! // those whose clock is half a minute late.
//! let once = LeaseOptions::default().min_hold(Duration::from_secs(60)).max_hold(Duration::from_secs(3_600));
//! if let Some(job) = leases.take("_jobs", ["nightly"], once).await?.guard {
//!     // …
//!     job.release().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Beside others
//!
//! By their documents: Redisson 3 and 4 (`RLock` unless said), redsync 4, rslock 0.9. Each of our
//! cells names the test in `tests/it` or `tests/races` that tries it.
//!
//! | | Redisson | redsync | rslock | here |
//! | --- | --- | --- | --- | --- |
//! | owner | client id and thread | 128 random bits per lock | 160 random bits per lock | 128 random bits per acquisition: `a_lease_has_one_holder_and_a_batch_takes_what_is_free` |
//! | release and renewal by the owner alone | script | script | script | script: `the_late_release_of_an_expired_holder_frees_nobody_else` |
//! | renewal | watchdog; an explicit lease time switches it off | by hand | by hand | watchdog, unless it is said otherwise: `an_explicit_lease_time_is_renewed_and_what_is_not_is_said` |
//! | renewals in one call | batches | one | one | up to 100: `leases_that_were_taken_one_by_one_are_renewed_together` |
//! | longest hold of a holder that hangs | none | its lease | its lease | said in the options: `the_longest_hold_ends_a_lease_that_the_watchdog_would_renew_for_ever` |
//! | renewal after the release | reported (issue 7272) | renews by hand alone | renews by hand alone | none: `no_renewal_outlives_the_release`, `what_has_left_the_watchlist_never_comes_back` |
//! | errors of Redis during renewal | tried again | the caller's | the caller's | survived, told when time is over: `the_watchdog_survives_errors_and_tells_what_they_cost` |
//! | a holder learns that its lease is gone | when it unlocks | when it asks | when it asks | told, and its work cancelled: `a_lease_that_redis_forgot_is_lost_at_the_next_renewal_and_the_work_stops` |
//! | a check before COMMIT | asks Redis | `Until` | validity time | with a margin, counted from before the request: `a_slow_answer_makes_the_local_deadline_earlier_and_not_later`, `what_has_no_right_any_more_is_not_committed` |
//! | fencing token | `RFencedLock` | – | – | always, rising: `with_the_fence_a_holder_that_was_stopped_overwrites_nothing`, `tokens_rise_also_when_redis_lost_its_data` |
//! | waiting | channel per lock | 32 tries with delays | 3 tries with delays | channel per scope and own looks, bounded: `a_release_wakes_one_who_waits`, `the_end_of_a_lease_frees_one_who_waits`, `a_wake_up_is_passed_on_by_those_who_leave` |
//! | giving up while waiting | interruptible; may leave a renewed key (issue 7272) | context | – | leaves nothing: `whoever_stops_waiting_leaves_no_lease_behind` |
//! | many names | `RMultiLock`, one after the other | – | – | one call, all or those that are free: `a_thousand_users_are_one_call_each_way`, `all_of_them_or_none`, `two_who_want_the_same_names_in_another_order_do_not_wait_for_each_other` |
//! | re-entrancy | by thread | – | – | by sharing the guard: `a_shared_guard_is_released_with_the_last` |
//! | a lost answer | tried again | tried again on others | tried again on others | released in the background, a second release is no error: `a_lost_answer_leaves_no_lease_behind_and_a_release_after_it_is_no_error` |
//! | a guard that is dropped | – | – | released, on some runtimes | released in the background: `a_dropped_guard_releases_and_leaves_nothing_behind` |
//! | least holding time | – | – | – | `a_job_is_held_for_its_least_time_though_it_is_done_sooner` |
//! | inspection | of one lock | of one lock | – | list, show, release: `leases_are_listed_shown_and_released_by_an_operator` |
//! | a full Redis | refuses | refuses | refuses | goes on: `a_full_redis_takes_renews_and_releases_leases` |
//! | restart of Redis | as durable as Redis | as durable as most of several | as durable as most of several | survives with its data, told without: `a_lease_survives_a_restart_of_redis_and_its_loss_is_told` |
//! | fair order | `RFairLock` | – | – | left out: a line in Redis has to be cleared of those who died in it, and the first in line is often the slowest; a worker's delivery waits its turn in the queue anyway |
//! | acknowledgement by replicas | on by default | several masters instead | several masters instead | left out: a lease that a failover forgets is held twice, and so is one whose holder was stopped; the fencing token and the database's keys stand for both. Orders are another matter, and not kept by a lease |

mod core;
mod guard;
mod inspect;
mod listener;
mod options;
mod scopes;
mod sync;
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
pub use self::options::{LeaseOptions, Renewal};
pub use self::scopes::{Tokens, release_all};
use self::waiters::Waiter;
use self::wire::{Request, Said, Which, Wire};
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

/// The time that a lease must still have before COMMIT: longer than a commit takes, far shorter than
/// a lease. Pass it to [`Guard::is_valid_for`] or [`Guard::ensure_valid`] right before committing.
pub const COMMIT_MARGIN: Duration = Duration::from_secs(1);

/// Names in one call, at most.
pub const MAX_NAMES_PER_CALL: usize = 1_000;

/// Nobody means more than this; clocks could not count much more.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 86_400);

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
        options: LeaseOptions,
    ) -> Result<Taken, LeaseError> {
        let tried = self.core.take(checked(scope, names, options, Which::Free)?).await?;
        let held = tried.said.iter().map(|said| matches!(said, Said::Taken(_))).collect();
        Ok(Taken { held, guard: tried.guard })
    }

    /// Takes all of `names` or none; waits up to `within` until they are free together. `None` where
    /// they were not. It holds none while it waits for another, so two who want the same names in
    /// another order do not wait for each other.
    ///
    /// Of those who wait for a name, a release wakes one in each process; and each looks by himself
    /// when the lease ends, and about once a second. There is no order among them. While Redis is away
    /// it goes on trying, every two seconds and longer; an error is answered when the time is over. A
    /// request that is under way then is waited for, for up to three times the time that a reply may
    /// take.
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn acquire<'a>(
        &self,
        scope: &str,
        names: impl IntoIterator<Item = &'a str>,
        options: LeaseOptions,
        within: Duration,
    ) -> Result<Option<Guard>, LeaseError> {
        let mut request = checked(scope, names, options, Which::AllAndWait)?;
        let deadline = Instant::now() + within.min(LONGEST_WAIT);
        let mut waiter: Option<Waiter> = None;
        let mut backoff = Backoff::default();
        loop {
            if Instant::now() >= deadline {
                request.which = Which::AllOrNone;
            }
            let pause = match self.core.take(request.clone()).await {
                Ok(tried) if tried.guard.is_some() => {
                    waiter.into_iter().for_each(Waiter::satisfied);
                    return Ok(tried.guard);
                }
                Ok(tried) => {
                    backoff.reset();
                    if Instant::now() >= deadline {
                        // What woke it was of no use: somebody else was quicker.
                        waiter.into_iter().for_each(Waiter::satisfied);
                        return Ok(None);
                    }
                    let (name, ends_in) = busy(&request.names, &tried.said, waiter.as_ref())?;
                    let moved = waiter.is_some();
                    if !waiter.as_ref().is_some_and(|waiter| waiter.waits_for(name)) {
                        waiter = Some(self.core.waiters.enter(scope, name));
                        self.core.listener.notify_one();
                        // Tries once more from within the line, before it sleeps. Whoever goes from one
                        // line to another takes a breath: two names could take turns for ever.
                        if moved {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        continue;
                    }
                    // Not all in the same instant.
                    let chance = rand::rng().random_range(0.5..=1.0);
                    (ends_in + Duration::from_millis(20).mul_f64(chance)).min(LOOK_EVERY.mul_f64(chance))
                }
                Err(LeaseError::Redis(
                    fault @ (Fault::Unavailable(_) | Fault::Late(_) | Fault::NoScript),
                )) if Instant::now() < deadline => {
                    tracing::debug!(%fault, "waiting for a lease goes on");
                    // What woke it is passed on.
                    waiter = None;
                    backoff.delay()
                }
                Err(error) => return Err(error),
            };
            let pause = pause.min(deadline.saturating_duration_since(Instant::now()));
            let pause = tokio::time::sleep(pause.max(Duration::from_millis(1)));
            match &mut waiter {
                Some(waiter) => {
                    let woken = tokio::select! {
                        () = waiter.woken() => true,
                        () = pause => false,
                    };
                    if !woken {
                        waiter.wakes_by_itself();
                    }
                }
                None => pause.await,
            }
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

    /// Returns when nothing is being taken or released in the background any more, `true`, or when
    /// the time is over. Before a process ends: what it has dropped is then free, and need not end by
    /// itself.
    pub async fn wait_until_idle(&self, within: Duration) -> bool {
        let resting = async {
            while !self.core.tasks.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(within.min(LONGEST_WAIT), resting).await.is_ok()
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
    options: LeaseOptions,
    which: Which,
) -> Result<Request, LeaseError> {
    check_scope(scope)?;
    options.check()?;
    let names: Vec<String> =
        names.into_iter().map(|name| check_name(name).map(|()| name.to_owned())).collect::<Result<_, _>>()?;
    if names.is_empty() || names.len() > MAX_NAMES_PER_CALL {
        return Err(LeaseError::Invalid(format!(
            "{} names in one call: it takes from 1 to {MAX_NAMES_PER_CALL}",
            names.len()
        )));
    }
    Ok(Request { scope: scope.to_owned(), names, options, which })
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
