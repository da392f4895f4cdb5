//! How a lease is kept alive, for how long, and how its holder learns that it is lost.

use std::time::{Duration, Instant};

use doorbuster::lease::{LeaseError, LeaseOptions, Released};
use doorbuster::rehearsal::chaos::Weather;

use crate::seams::lease::{leases, leases_of, ms, script_calls};
use crate::support::{World, ask_redis, behind_proxy, servers, until};

const LONG: Duration = Duration::from_secs(40);

/// Waits until the guard reports that its lease is lost.
async fn lost(guard: &doorbuster::lease::Guard) {
    tokio::time::timeout(LONG, guard.lost()).await.expect("the loss is reported");
    assert!(!guard.is_valid_for(Duration::ZERO));
}

/// In many libraries an explicit lease time silently switches the renewal off.
#[tokio::test(flavor = "multi_thread")]
async fn an_explicit_lease_time_does_not_switch_renewal_off() {
    let (_world, leases) = leases().await;
    let kept = leases.take("sale", ["kept"], LeaseOptions::lasting(ms(5_000))).await.unwrap().guard.unwrap();
    let options = LeaseOptions::lasting(ms(900)).renewed_manually();
    let ends = leases.take("sale", ["ends"], options).await.unwrap().guard.unwrap();
    lost(&ends).await;
    // More than twice the lease.
    let guard = leases.acquire("sale", ["kept"], LeaseOptions::default(), ms(11_000)).await.unwrap();
    assert!(guard.is_none() && kept.is_valid_for(ms(100)));
    assert_eq!(kept.release().await.unwrap(), Released::Freed);
    assert_eq!(ends.release().await.unwrap(), Released::Late);
    assert_eq!(leases.held(), 0);
}

/// A guard that is never dropped must not lock others out for ever.
#[tokio::test(flavor = "multi_thread")]
async fn max_hold_ends_a_lease_that_the_watchdog_would_renew_for_ever() {
    let (_world, leases) = leases().await;
    let begin = Instant::now();
    let options = LeaseOptions::lasting(ms(6_000)).max_hold(ms(8_000));
    let guard = leases.take("sale", ["ada"], options).await.unwrap().guard.unwrap();
    lost(&guard).await;
    assert!(begin.elapsed() >= ms(8_000), "the lease was renewed until max_hold");
    let next = leases.acquire("sale", ["ada"], LeaseOptions::default(), LONG).await.unwrap();
    assert!(next.is_some(), "the lease is free although its holder never released it");
    until("the watchdog has dropped the first lease", LONG, async || (leases.held() == 1).then_some(()))
        .await;
    assert_eq!(guard.release().await.unwrap(), Released::Late);
}

/// A failed renewal must not go unnoticed.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_redis_lost_stops_the_work_at_the_next_renewal() {
    let (world, leases) = leases().await;
    let guard = leases.take("sale", ["ada"], LeaseOptions::lasting(ms(1_500))).await.unwrap().guard.unwrap();
    let other = guard.share();
    let work = tokio::spawn(async move { other.until_lost(std::future::pending::<()>()).await });
    let _: i64 = ask_redis(&servers().redis, &format!("HDEL {}:{{sale}}:leases ada", world.name)).await;
    let stopped = tokio::time::timeout(LONG, work).await.expect("the work is stopped").unwrap();
    assert!(matches!(stopped, Err(LeaseError::Lost { .. })));
    lost(&guard).await;
    assert!(matches!(guard.ensure_valid(Duration::ZERO), Err(LeaseError::Lost { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_finishes_in_time_is_not_cancelled() {
    let (_world, leases) = leases().await;
    let guard = leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    assert_eq!(guard.until_lost(async { 7 }).await.unwrap(), 7);
    assert!(guard.ensure_valid(Duration::from_secs(5)).is_ok());
    assert!(guard.ensure_valid(Duration::from_secs(60)).is_err(), "the lease does not last that long");
}

/// A renewal for less than what is left would end a lease early.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_never_shortens_a_lease() {
    let (_world, leases) = leases().await;
    let options = LeaseOptions::lasting(ms(600)).min_hold(Duration::from_secs(20));
    let guard = leases.take("sale", ["ada"], options).await.unwrap().guard.unwrap();
    assert!(guard.renew().await.unwrap());
    let seen = leases.show("sale", "ada").await.unwrap().expect("held");
    assert!(seen.ends_in > Duration::from_secs(10), "{seen:?}");
    assert!(guard.is_valid_for(Duration::from_secs(10)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watchdog_survives_errors_and_reports_the_leases_they_cost() {
    let (mut world, direct) = leases().await;
    world.set("redis.timeout_ms=200");
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let leases = leases_of(&world);
    let long = leases.take("sale", ["long"], LeaseOptions::lasting(LONG)).await.unwrap().guard.unwrap();
    let short =
        leases.take("sale", ["short"], LeaseOptions::lasting(ms(1_500))).await.unwrap().guard.unwrap();
    // Redis cannot be reached, so the holder's own clock ends the lease.
    proxy.set(Weather::Frozen);
    lost(&short).await;
    proxy.set(Weather::Down);
    assert!(long.is_valid_for(ms(1)), "an error alone does not end a lease");
    proxy.set(Weather::Fair);
    let after = until("leases are taken again", LONG, async || {
        leases
            .take("sale", ["after"], LeaseOptions::lasting(ms(5_000)))
            .await
            .ok()
            .and_then(|taken| taken.guard)
    })
    .await;
    // Longer than twice the lease, so the same watchdog still renews.
    assert!(direct.acquire("sale", ["after"], LeaseOptions::default(), ms(11_000)).await.unwrap().is_none());
    assert!(after.is_valid_for(ms(1)) && long.is_valid_for(ms(1)));
}

/// As if a failover had brought a clock that is so much further ahead. A lease that has ended by it stays as it is.
async fn step_ahead(world: &World, name: &str, by_ms: i64) {
    let key = format!("{}:{{sale}}:leases", world.name);
    let record: String = ask_redis(&servers().redis, &format!("HGET {key} {name}")).await;
    let fields: Vec<&str> = record.splitn(5, '|').collect();
    let [ends, owner, token, taken, holder] = fields[..] else { panic!("{record}") };
    let (ends, taken): (i64, i64) = (ends.parse().unwrap(), taken.parse().unwrap());
    let (seconds, _): (i64, i64) = ask_redis(&servers().redis, "TIME").await;
    if ends > seconds * 1_000 {
        let (ends, taken) = (ends - by_ms, taken - by_ms);
        let stepped = format!("HSET {key} {name} {ends}|{owner}|{token}|{taken}|{holder}");
        let _: i64 = ask_redis(&servers().redis, &stepped).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_a_clock_step_of_ten_seconds_has_ended_stays_its_holders() {
    let (world, leases) = leases().await;
    let others = leases_of(&world);
    let options = LeaseOptions::lasting(ms(3_000));
    let first = leases.take("sale", ["ada"], options).await.unwrap().guard.unwrap();
    let began = Instant::now();
    // Longer than the lease: the other process has seen it all the time, and it is renewed meanwhile.
    while began.elapsed() < ms(7_000) {
        step_ahead(&world, "ada", 10_000).await;
        let second = others.take("sale", ["ada"], options).await.unwrap();
        assert_eq!(second.held, [false]);
        assert!(first.is_valid_for(ms(1)));
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(first.release().await.unwrap(), Released::Freed);
    assert_eq!(others.take("sale", ["ada"], options).await.unwrap().held, [true]);
}

/// Its process has died. Another one waits once more for as long as the lease was taken for.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_a_clock_step_has_ended_is_free_once_nobody_can_hold_it() {
    let (world, leases) = leases().await;
    let options = LeaseOptions::lasting(ms(2_000)).renewed_manually();
    let first = leases.take("sale", ["ada"], options).await.unwrap().guard.unwrap();
    let (began, token) = (Instant::now(), first.token());
    first.abandon();
    step_ahead(&world, "ada", 10_000).await;
    let second = leases_of(&world).acquire("sale", ["ada"], options, LONG).await.unwrap().expect("free");
    assert!(second.token() > token);
    assert!((ms(1_900)..ms(9_000)).contains(&began.elapsed()), "{:?}", began.elapsed());
    // No step explains a lease that ended so long ago.
    second.abandon();
    step_ahead(&world, "ada", 13_000).await;
    assert_eq!(leases_of(&world).take("sale", ["ada"], options).await.unwrap().held, [true]);
}

/// The holder counts from before it sends the request. Redis counts from when the request arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reply_makes_the_local_deadline_earlier_and_not_later() {
    let (mut world, direct) = leases().await;
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let leases = leases_of(&world);
    leases.list("sale").await.unwrap();
    proxy.set(Weather::Slow(ms(400)));
    let options = LeaseOptions::lasting(Duration::from_secs(5)).renewed_manually();
    let guard = leases.take("sale", ["ada"], options).await.unwrap().guard.unwrap();
    let redis = direct.show("sale", "ada").await.unwrap().expect("held");
    let ours = guard.remaining();
    assert!(ours <= redis.ends_in, "{ours:?} by our clock, {redis:?}");
    assert!(ours <= ms(5_000 - 400), "{ours:?}");
    proxy.set(Weather::Fair);
}

/// The answers take most of the third of the lease that is left for a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn slow_renewals_still_keep_a_lease() {
    let (mut world, direct) = leases().await;
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let leases = leases_of(&world);
    let names: Vec<String> = (0..250).map(|nth| format!("user{nth}")).collect();
    let options = LeaseOptions::lasting(ms(8_000));
    let taken = leases.take("sale", names.iter().map(String::as_str), options).await.unwrap();
    let guard = taken.guard.unwrap();
    proxy.set(Weather::Slow(ms(600)));
    assert!(direct.acquire("sale", ["user7"], LeaseOptions::default(), ms(17_000)).await.unwrap().is_none());
    assert!(guard.is_valid_for(ms(1)));
    proxy.set(Weather::Fair);
}

/// Renews and releases the same lease at once, in many orders: a released lease is never renewed again.
#[tokio::test(flavor = "multi_thread")]
async fn no_renewal_outlives_the_release() {
    let (_world, leases) = leases().await;
    // A renewal that comes after the release.
    let options = LeaseOptions::lasting(LONG).renewed_manually();
    let guard = leases.take("sale", ["ada"], options).await.unwrap().guard.unwrap();
    assert!(leases.force_release("sale", "ada", guard.token()).await.unwrap());
    assert!(!guard.renew().await.unwrap());
    assert!(leases.list("sale").await.unwrap().is_empty());
    drop(guard);
    let rounds = (0..200).map(|nth| {
        let leases = leases.clone();
        async move {
            let name = format!("user{nth}");
            let guard = leases
                .take("sale", [name.as_str()], LeaseOptions::lasting(ms(500)))
                .await
                .unwrap()
                .guard
                .unwrap();
            let other = guard.share();
            let (renewed, mut renewals) = tokio::sync::watch::channel(0);
            let renewing = tokio::spawn(async move {
                while other.shares() > 1 {
                    if !other.renew().await.unwrap_or(true) {
                        break;
                    }
                    renewed.send_modify(|renewals| *renewals += 1);
                }
                drop(renewed);
                other.release().await
            });
            // Released after a few renewals, with the next one under way, or once the lease is lost.
            let some = rand::random_range(0..5);
            let _ = renewals.wait_for(|renewals| *renewals >= some).await;
            guard.release().await.unwrap();
            renewing.await.unwrap().unwrap();
        }
    });
    futures_util::future::join_all(rounds).await;
    assert_eq!(leases.held(), 0);
    leases.wait_until_idle(LONG).await;
    assert!(leases.list("sale").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_guard_is_released_by_its_last_holder() {
    let (_world, leases) = leases().await;
    let first = leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    let second = first.share();
    let third = second.share();
    assert_eq!((first.shares(), third.token()), (3, first.token()));
    assert_eq!(first.release().await.unwrap(), Released::Shared);
    drop(third);
    assert_eq!(second.shares(), 1);
    assert!(leases.show("sale", "ada").await.unwrap().is_some());
    // Leases are not re-entrant: a second acquisition is a different owner.
    assert!(leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap().guard.is_none());
    assert_eq!(second.release().await.unwrap(), Released::Freed);
    assert!(leases.show("sale", "ada").await.unwrap().is_none());
}

/// A job that several hosts start at the same time runs once, even if it finishes at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_held_for_min_hold_even_if_it_finishes_sooner() {
    let (_world, leases) = leases().await;
    let options = LeaseOptions::default().min_hold(ms(1_500));
    let job = leases.take("_jobs", ["nightly"], options).await.unwrap().guard.unwrap();
    assert_eq!(job.release().await.unwrap(), Released::Freed);
    assert_eq!(leases.held(), 0, "nobody renews it");
    assert!(
        leases.take("_jobs", ["nightly"], options).await.unwrap().guard.is_none(),
        "still held for min_hold"
    );
    let next = leases.acquire("_jobs", ["nightly"], LeaseOptions::default(), LONG).await.unwrap();
    assert!(next.is_some());
}

/// A renewal that arrives after the release must not extend the minimum hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_renewal_does_not_extend_a_lease_kept_for_min_hold() {
    let (world, leases) = leases().await;
    let options = LeaseOptions::default().min_hold(ms(3_000));
    let job = leases.take("_jobs", ["nightly"], options).await.unwrap().guard.unwrap();
    let owner = job.owner().to_owned();
    job.release().await.unwrap();
    let client = redis::Client::open(servers().redis.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let script = redis::Script::new(include_str!("../../../lua/lease/renew.lua"));
    let key = format!("{}:{{_jobs}}:leases", world.name);
    let mut renewal = script.key(key);
    let renewed: Vec<i64> =
        renewal.arg(owner).arg(600_000).arg("nightly").invoke_async(&mut connection).await.unwrap();
    assert_eq!(renewed, [0]);
    assert!(leases.acquire("_jobs", ["nightly"], LeaseOptions::default(), LONG).await.unwrap().is_some());
}

/// The reply to the acquisition is lost. Nobody runs the job, so it must not be held for its minimum hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_taker_got_no_reply_is_free_for_others() {
    let (mut world, direct) = leases().await;
    world.set("redis.timeout_ms=200");
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let leases = leases_of(&world);
    leases.scopes().await.unwrap();
    proxy.set(Weather::AnswersLost);
    let options = LeaseOptions::default().min_hold(Duration::from_secs(600));
    assert!(leases.take("_jobs", ["nightly"], options).await.is_err());
    proxy.set(Weather::Fair);
    assert!(direct.acquire("_jobs", ["nightly"], LeaseOptions::default(), LONG).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_lease_is_neither_renewed_nor_released() {
    let (_world, leases) = leases().await;
    let guard = leases.take("sale", ["ada"], LeaseOptions::lasting(ms(1_000))).await.unwrap().guard.unwrap();
    guard.abandon();
    leases.wait_until_idle(LONG).await;
    assert_eq!(leases.held(), 0);
    assert!(leases.show("sale", "ada").await.unwrap().is_some());
    assert!(leases.acquire("sale", ["ada"], LeaseOptions::default(), LONG).await.unwrap().is_some());
}

/// Few calls renew many leases that were taken at different moments.
#[tokio::test(flavor = "multi_thread")]
async fn leases_taken_one_by_one_are_renewed_together() {
    let (mut world, _) = leases().await;
    let folder = tempfile::tempdir().unwrap();
    let server = crate::support::private_redis(&mut world, folder.path()).await;
    let leases = leases_of(&world);
    let mut guards = Vec::new();
    for nth in 0..300 {
        let name = format!("user{nth}");
        let options = LeaseOptions::lasting(Duration::from_secs(6));
        guards.push(leases.take("sale", [name.as_str()], options).await.unwrap().guard.unwrap());
    }
    leases.wait_until_idle(LONG).await;
    let before = script_calls(&server.url).await;
    let ends = || guards.iter().map(|guard| Instant::now() + guard.remaining()).collect::<Vec<_>>();
    let first = ends();
    until("all leases have been renewed", LONG, async || {
        first.iter().zip(ends()).all(|(first, now)| now > *first + ms(1_000)).then_some(())
    })
    .await;
    let calls = script_calls(&server.url).await - before;
    assert!((3..=40).contains(&calls), "{calls} calls for 300 leases");
    assert_eq!(leases.held(), 300);
    server.stop(doorbuster::rehearsal::servers::Ending::AtOnce).await;
}
