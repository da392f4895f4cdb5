//! Leases: who may act for a user, or run a task, right now. A lease is a name in Redis with an owner, an expiry
//! and a fencing token. Workers take one per user, tasks that must run in one place take one each, and programs that
//! use this crate as a library can take their own.
//!
//! A lease makes contention cheap; it does not make anything correct by itself. A holder that was stopped for longer
//! than its lease still believes that it holds it. So each acquisition carries a token that is higher than every
//! earlier one, and the protected data must refuse a lower token.
//!
//! Only its owner releases a lease, and every lease expires: nothing scans for stuck leases. A process judges its own leases
//! by its monotonic clock, counted from before the request. Redis judges by its own clock, which may step at a failover. So a
//! lease that has ended by it stays its owner's until a process has seen it unchanged for as long as it was taken for, or for
//! ten seconds more: a step of up to ten seconds, ahead or back, makes others wait longer, and gives no lease two holders. If
//! a process's own clock stops (a suspended machine), or Redis's steps by more, only the token still protects.
//!
//! # Use
//!
//! ```no_run
//! # use std::time::Duration;
//! # use doorbuster::lease::{COMMIT_MARGIN, LeaseError, LeaseOptions, Leases};
//! # use doorbuster::link::RedisSettings;
//! # async fn pay(_fence: i64, _may_commit: impl Fn() -> bool) {}
//! # async fn example() -> Result<(), LeaseError> {
//! let redis = RedisSettings { url: "redis://127.0.0.1".into(), timeout: Duration::from_millis(500), member: None };
//! let leases = Leases::open(&redis, "shop")?;
//!
//! // Waits up to five seconds for a lease of 30 s that the watchdog renews every 10 s, for at most 10 minutes.
//! let Some(guard) = leases.acquire("sale", ["ada"], LeaseOptions::default(), Duration::from_secs(5)).await?
//! else {
//!     return Ok(()); // Somebody else has it.
//! };
//! // The work stops if the lease is lost. Everything it writes carries the token, and right before COMMIT it checks
//! // that the lease still lasts.
//! let may_commit = || guard.ensure_valid(COMMIT_MARGIN).is_ok();
//! guard.until_lost(pay(guard.token(), may_commit)).await?;
//! guard.release().await?;
//!
//! // Many names at once: those that are free, in one round trip.
//! let taken = leases.take("sale", ["ada", "bob", "cy"], LeaseOptions::lasting(Duration::from_secs(5))).await?;
//! println!("{:?}", taken.held);
//!
//! // A job that every host starts at midnight and one of them runs. The others find it taken, even if their clocks
//! // are half a minute late.
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
//! According to their documentation: Redisson 3 and 4 (`RLock` unless stated otherwise), redsync 4, rslock 0.9. Each
//! cell in our column names the tests in `tests/it` or `tests/races` that cover it.
//!
//! | | Redisson | redsync | rslock | here |
//! | --- | --- | --- | --- | --- |
//! | owner | client id and thread | 128 random bits per lock | 160 random bits per lock | 128 random bits per acquisition: `a_lease_has_one_holder_and_a_batch_takes_the_free_names` |
//! | release and renewal only by the owner | script | script | script | script: `a_late_release_by_an_expired_holder_frees_nobody_else` |
//! | renewal | watchdog; an explicit lease time switches it off | by hand | by hand | watchdog, unless switched off explicitly: `an_explicit_lease_time_does_not_switch_renewal_off` |
//! | renewals in one call | batches | one | one | up to 100: `leases_taken_one_by_one_are_renewed_together` |
//! | maximum hold of a holder that hangs | none | its lease | its lease | set in the options: `max_hold_ends_a_lease_that_the_watchdog_would_renew_for_ever` |
//! | renewal after release | reported (issue 7272) | renews only by hand | renews only by hand | none: `no_renewal_outlives_the_release`, `a_lease_that_left_the_watchlist_never_comes_back` |
//! | Redis errors during renewal | retried | left to the caller | left to the caller | retried; the loss is reported when time is over: `the_watchdog_survives_errors_and_reports_the_leases_they_cost` |
//! | a holder learns that its lease is gone | when it unlocks | when it asks | when it asks | at once, and its work is cancelled: `a_lease_that_redis_lost_stops_the_work_at_the_next_renewal` |
//! | check before COMMIT | asks Redis | `Until` | validity time | with a margin, counted from before the request: `a_slow_reply_makes_the_local_deadline_earlier_and_not_later`, `a_batch_whose_lease_has_ended_is_not_committed` |
//! | fencing token | `RFencedLock` | – | – | always, rising: `with_fencing_a_stopped_holder_overwrites_nothing`, `tokens_rise_even_after_redis_loses_its_data` |
//! | waiting | channel per lock | 32 tries with delays | 3 tries with delays | channel per scope plus polling, bounded: `a_release_wakes_a_waiter`, `an_expired_lease_goes_to_a_waiter`, `a_waiter_that_leaves_passes_its_wake_up_on` |
//! | giving up while waiting | interruptible; may leave a renewed key (issue 7272) | context | – | leaves nothing behind: `a_cancelled_wait_leaves_no_lease_behind` |
//! | many names | `RMultiLock`, one after the other | – | – | one call, all of them or the free ones: `a_thousand_users_take_one_call_each_way`, `acquire_takes_all_names_or_none`, `waiters_for_the_same_names_in_another_order_do_not_deadlock` |
//! | re-entrancy | by thread | – | – | by sharing the guard: `a_shared_guard_is_released_by_its_last_holder` |
//! | a lost reply | retried | retried on other servers | retried on other servers | released in the background; releasing twice is no error: `a_lost_reply_leaves_no_lease_behind_and_a_release_after_it_is_no_error` |
//! | a guard that is dropped | – | – | released, on some runtimes | released in the background: `a_dropped_guard_releases_and_leaves_nothing_behind` |
//! | minimum hold | – | – | – | `a_job_is_held_for_min_hold_even_if_it_finishes_sooner` |
//! | inspection | of one lock | of one lock | – | list, show, release: `an_operator_lists_shows_and_releases_leases` |
//! | a full Redis | refuses | refuses | refuses | keeps working: `a_full_redis_still_takes_renews_and_releases_leases` |
//! | restart of Redis | as durable as Redis | as durable as most of several | as durable as most of several | survives if Redis keeps its data, reported if not: `a_lease_survives_a_restart_of_redis_and_its_loss_is_reported` |
//! | fair order | `RFairLock` | – | – | left out: a queue in Redis must be cleared of waiters that died in it, and the first in line is often the slowest; a worker's delivery waits its turn in RabbitMQ anyway |
//! | acknowledgement by replicas | on by default | several masters instead | several masters instead | left out: a lease that a failover forgets is held twice, and so is one whose holder was stopped; the fencing token and the database's keys cover both. Orders must survive a failover, but no lease keeps them |

mod acquire;
mod core;
mod error;
mod guard;
mod held;
mod inspect;
mod leases;
mod listener;
mod options;
mod record;
mod request;
mod scopes;
mod sightings;
mod sync;
mod take;
mod waiters;
mod watchdog;
mod watchlist;
mod wire;

use std::time::Duration;

pub use self::core::Released;
pub use self::error::LeaseError;
pub use self::guard::Guard;
pub use self::leases::{Leases, Taken};
pub use self::options::{LeaseOptions, Renewal};
pub use self::record::Lease;
pub use self::scopes::{Tokens, release_all};
pub use crate::link::Fault;

/// How long a lease must still last before COMMIT: longer than a commit takes, far shorter than a lease. Pass it to
/// [`Guard::is_valid_for`] or [`Guard::ensure_valid`] right before committing.
pub const COMMIT_MARGIN: Duration = Duration::from_secs(1);

/// The most names in one call.
pub const MAX_NAMES_PER_CALL: usize = 1_000;
