//! Taking and releasing leases, against a real Redis.

use std::time::Duration;

use doorbuster::lease::{LeaseError, LeaseOptions, Leases, MAX_NAMES_PER_CALL, Released};
use doorbuster::rehearsal::chaos::Weather;
use doorbuster::rehearsal::servers::{Ending, Kind, Server};

use crate::support::{Database, World, ask_redis, behind_proxy, private_redis, run, servers, until};

const LONG: Duration = Duration::from_secs(40);

pub fn leases_of(world: &World) -> Leases {
    Leases::open(&world.config().redis(), &world.config().redis.prefix).expect("leases")
}

pub async fn leases() -> (World, Leases) {
    let world = World::new(Database::Sqlite).await;
    let leases = leases_of(&world);
    (world, leases)
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_has_one_holder_and_a_batch_takes_the_free_names() {
    let (_world, leases) = leases().await;
    let first = leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap();
    assert_eq!(first.held, [true]);
    let second = leases.take("sale", ["ada", "bob", "cy"], LeaseOptions::default()).await.unwrap();
    assert_eq!(second.held, [false, true, true]);
    let (first, second) = (first.guard.unwrap(), second.guard.unwrap());
    assert!(second.token() > first.token());
    assert_ne!(second.owner(), first.owner(), "the owner is an acquisition, not a process or a thread");
    assert_eq!(second.names(), ["bob", "cy"]);
    assert_eq!(first.release().await.unwrap(), Released::Freed);
    let third = leases.take("sale", ["ada", "bob"], LeaseOptions::default()).await.unwrap();
    assert_eq!(third.held, [true, false]);
    assert!(leases.take("sale", ["bob"], LeaseOptions::default()).await.unwrap().guard.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_takes_all_names_or_none() {
    let (_world, leases) = leases().await;
    let bob = leases.take("sale", ["bob"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    let all = ["ada", "bob", "cy"];
    assert!(leases.acquire("sale", all, LeaseOptions::default(), Duration::ZERO).await.unwrap().is_none());
    assert_eq!(leases.list("sale").await.unwrap().len(), 1, "none of the other names was taken");
    bob.release().await.unwrap();
    let guard = leases.acquire("sale", all, LeaseOptions::default(), Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(guard.names(), all);
    assert_eq!(leases.list("sale").await.unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_in_another_scope_is_another_lease() {
    let (_world, leases) = leases().await;
    let here = leases.take("sale", ["ada", "ada"], LeaseOptions::default()).await.unwrap();
    assert_eq!(here.held, [true, true], "a name twice in one call is held once");
    let there = leases.take("other", ["ada"], LeaseOptions::default()).await.unwrap();
    assert_eq!(there.held, [true]);
    there.guard.unwrap().release().await.unwrap();
    let held = leases.show("sale", "ada").await.unwrap().expect("the other scope's lease is untouched");
    assert_eq!(held.owner, here.guard.unwrap().owner());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_by_an_expired_holder_frees_nobody_else() {
    let (_world, leases) = leases().await;
    let options = LeaseOptions::lasting(ms(50)).renewed_manually();
    let expired = leases.take("sale", ["ada"], options).await.unwrap().guard.unwrap();
    let next = leases
        .acquire("sale", ["ada"], LeaseOptions::default(), LONG)
        .await
        .unwrap()
        .expect("the lease expired");
    assert!(!expired.is_valid_for(Duration::ZERO), "the holder can see that its lease is over");
    assert!(matches!(expired.ensure_valid(Duration::ZERO), Err(LeaseError::Lost { .. })));
    assert!(!expired.renew().await.unwrap());
    assert!(next.token() > expired.token());
    assert_eq!(expired.release().await.unwrap(), Released::Late);
    assert_eq!(leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap().held, [false]);
    assert!(next.is_valid_for(ms(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_guard_releases_and_leaves_nothing_behind() {
    let (world, leases) = leases().await;
    let names: Vec<String> = (0..300).map(|nth| format!("user{nth}")).collect();
    let taken = leases.take("sale", names.iter().map(String::as_str), LeaseOptions::default()).await.unwrap();
    assert_eq!((leases.held(), leases.list("sale").await.unwrap().len()), (1, 300));
    drop(taken);
    assert_eq!(leases.held(), 0, "the watchdog renews nothing from then on");
    leases.wait_until_idle(LONG).await;
    let left: Vec<String> =
        ask_redis(&servers().redis, &format!("HKEYS {}:{{sale}}:leases", world.name)).await;
    assert_eq!(left, ["|fence"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_even_after_redis_loses_its_data() {
    let (world, leases) = leases().await;
    let mut before = 0;
    for _ in 0..100 {
        let guard = leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap().guard.unwrap();
        assert!(guard.token() > before);
        before = guard.token();
        guard.release().await.unwrap();
    }
    let _: i64 = ask_redis(&servers().redis, &format!("DEL {}:{{sale}}:leases", world.name)).await;
    let after = leases.take("sale", ["bob"], LeaseOptions::default()).await.unwrap().guard.unwrap().token();
    assert!(after > before, "{after} after {before}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_even_if_the_clock_of_redis_goes_back() {
    let (world, leases) = leases().await;
    // As if the last token came from a clock an hour ahead.
    let ahead = doorbuster::domain::Millis::now().0 * 1_000 + 3_600_000_000;
    let fence = format!("HSET {}:{{sale}}:leases |fence {ahead}", world.name);
    let _: i64 = ask_redis(&servers().redis, &fence).await;
    let guard = leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    assert_eq!(guard.token(), ahead + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_down_is_an_error_and_not_a_hang() {
    let (mut world, _) = leases().await;
    world.set("redis.url=redis://127.0.0.1:1").set("redis.timeout_ms=200");
    let leases = leases_of(&world);
    let taken = tokio::time::timeout(LONG, leases.take("sale", ["ada"], LeaseOptions::default())).await;
    assert!(taken.expect("no hang").is_err());
    let waiting = leases.acquire("sale", ["ada"], LeaseOptions::default(), ms(300));
    assert!(tokio::time::timeout(LONG, waiting).await.expect("no hang").is_err());
    assert!(tokio::time::timeout(LONG, leases.list("sale")).await.expect("no hang").is_err());
    assert_eq!(leases.held(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_hangs_is_an_error_and_not_a_hang() {
    let (mut world, direct) = leases().await;
    world.set("redis.timeout_ms=200");
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let leases = leases_of(&world);
    let held = leases.take("sale", ["bob"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    proxy.set(Weather::Frozen);
    let taken = tokio::time::timeout(LONG, leases.take("sale", ["ada"], LeaseOptions::default())).await;
    assert!(taken.expect("no hang").is_err());
    let waiting = leases.acquire("sale", ["ada"], LeaseOptions::default(), ms(300));
    assert!(tokio::time::timeout(LONG, waiting).await.expect("no hang").is_err());
    assert!(tokio::time::timeout(LONG, held.release()).await.expect("no hang").is_err());
    assert!(!leases.wait_until_idle(ms(10)).await, "the release continues in the background");
    proxy.set(Weather::Fair);
    until("every lease of the hanging server is free", Duration::from_secs(20), async || {
        direct.list("sale").await.unwrap().is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_last_handle_ends_watchdog_and_connections() {
    let (mut world, _) = leases().await;
    let folder = tempfile::tempdir().unwrap();
    let server = private_redis(&mut world, folder.path()).await;
    let clients = async || -> usize {
        let list: String = ask_redis(&server.url, "CLIENT LIST").await;
        list.lines().count()
    };
    let before = clients().await;
    let leases = leases_of(&world);
    let guard = leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    assert!(leases.acquire("sale", ["ada"], LeaseOptions::default(), ms(200)).await.unwrap().is_none());
    assert!(clients().await > before);
    drop(leases);
    // The guard needs no handle, and may be dropped on a thread outside the runtime.
    std::thread::spawn(move || drop(guard)).join().unwrap();
    until("every connection is closed", LONG, async || (clients().await <= before).then_some(())).await;
    assert!(leases_of(&world).list("sale").await.unwrap().is_empty());
    server.stop(Ending::AtOnce).await;
}

/// The reply to an acquisition is lost, so the lease is taken without a holder. Then the reply to a release is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_leaves_no_lease_behind_and_a_release_after_it_is_no_error() {
    let (mut world, direct) = leases().await;
    world.set("redis.timeout_ms=300");
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let leases = leases_of(&world);
    let kept = leases.take("sale", ["bob"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    proxy.set(Weather::AnswersLost);
    let taken = leases.take("sale", ["ada"], LeaseOptions::default()).await;
    assert!(matches!(taken, Err(LeaseError::Redis(_))));
    let mut releasing = tokio::spawn(kept.release());
    let early = tokio::time::timeout(ms(50), &mut releasing).await;
    proxy.set(Weather::Fair);
    let released = match early {
        Ok(released) => released.unwrap(),
        Err(_) => releasing.await.unwrap(),
    };
    // If the second try is lost too, the release continues in the background.
    assert!(matches!(released, Ok(Released::Freed) | Err(LeaseError::Redis(_))), "{released:?}");
    until("both are free, long before they expire", Duration::from_secs(20), async || {
        direct.list("sale").await.unwrap().is_empty().then_some(())
    })
    .await;
    assert_eq!(leases.held(), 0);
}

/// One script call sets the lease together with its expiry, by Redis's clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_expires_even_if_its_holder_never_returns() {
    let (_world, leases) = leases().await;
    let options = LeaseOptions::lasting(ms(1_500)).renewed_manually();
    // Neither renewed nor released, as if its process had died.
    std::mem::forget(leases.take("sale", ["ada"], options).await.unwrap().guard);
    let lease = leases.show("sale", "ada").await.unwrap().expect("held");
    assert!(lease.ends_in <= ms(1_500) && lease.age <= ms(1_500), "{lease:?}");
    assert!(leases.acquire("sale", ["ada"], LeaseOptions::default(), LONG).await.unwrap().is_some());
}

/// How many script calls a Redis has served.
pub async fn script_calls(url: &str) -> u64 {
    let stats: String = ask_redis(url, "INFO commandstats").await;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).expect("called");
    line.split(['=', ',']).nth(1).expect("calls").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_users_take_one_call_each_way() {
    let (mut world, _) = leases().await;
    let folder = tempfile::tempdir().unwrap();
    let server = private_redis(&mut world, folder.path()).await;
    let leases = leases_of(&world);
    let names: Vec<String> = (0..MAX_NAMES_PER_CALL).map(|nth| format!("user{nth}")).collect();
    let names = || names.iter().map(String::as_str);
    // After this first round the scripts are loaded and the scope is registered.
    let first = leases.take("sale", names(), LeaseOptions::default()).await.unwrap().guard.unwrap();
    first.release().await.unwrap();
    leases.wait_until_idle(LONG).await;
    let before = script_calls(&server.url).await;
    let guard = leases.take("sale", names(), LeaseOptions::default()).await.unwrap().guard.unwrap();
    assert_eq!(script_calls(&server.url).await, before + 1);
    guard.release().await.unwrap();
    assert_eq!(script_calls(&server.url).await, before + 2);
    assert!(leases.list("sale").await.unwrap().is_empty());
    server.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_still_takes_renews_and_releases_leases() {
    let (mut world, _) = leases().await;
    let folder = tempfile::tempdir().unwrap();
    let server = private_redis(&mut world, folder.path()).await;
    let _: () = ask_redis(&server.url, "CONFIG SET maxmemory 1").await;
    let leases = leases_of(&world);
    let guard = leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    assert!(guard.renew().await.unwrap());
    assert_eq!(leases.list("sale").await.unwrap().len(), 1);
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    leases.wait_until_idle(LONG).await;
    assert_eq!(leases.scopes().await.unwrap(), ["sale"]);
    server.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_survives_a_restart_of_redis_and_its_loss_is_reported() {
    let (mut world, _) = leases().await;
    let folder = tempfile::tempdir().unwrap();
    let server = private_redis(&mut world, folder.path()).await;
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let leases = leases_of(&world);
    let guard = leases.take("sale", ["ada"], LeaseOptions::lasting(LONG)).await.unwrap().guard.unwrap();
    server.stop(Ending::AtOnce).await;
    let again = Server::start(Kind::Redis, folder.path()).await.expect("Redis starts on its data");
    let address = |server: &Server| server.url.trim_start_matches("redis://").parse().unwrap();
    proxy.point_to(vec![address(&again)]);
    let kept = until("the lease can be renewed", LONG, async || guard.renew().await.ok()).await;
    assert!(kept, "Redis kept its data, and with it the lease");
    again.stop(Ending::AtOnce).await;

    let empty = tempfile::tempdir().unwrap();
    let another = Server::start(Kind::Redis, empty.path()).await.expect("a Redis without any data");
    proxy.point_to(vec![address(&another)]);
    let kept = until("the renewal is answered", LONG, async || guard.renew().await.ok()).await;
    assert!(!kept && !guard.is_valid_for(Duration::ZERO));
    guard.lost().await;
    another.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_killed_holder_are_cleared_by_later_calls() {
    let (world, leases) = leases().await;
    let names: Vec<String> = (0..50).map(|nth| format!("dead{nth}")).collect();
    let options = LeaseOptions::lasting(ms(10)).renewed_manually();
    let taken = leases.take("sale", names.iter().map(String::as_str), options).await.unwrap();
    taken.guard.unwrap().abandon();
    until("later calls clear the dead leases", LONG, async || {
        leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap().guard?.release().await.unwrap();
        let left: i64 = ask_redis(&servers().redis, &format!("HLEN {}:{{sale}}:leases", world.name)).await;
        (left <= 2).then_some(())
    })
    .await;
}

/// A scope is not kept for ever, but always longer than its leases.
#[tokio::test(flavor = "multi_thread")]
async fn a_scope_in_use_outlives_its_leases() {
    let (world, leases) = leases().await;
    let key = format!("{}:{{sale}}:leases", world.name);
    let lasts = async || -> i64 { ask_redis(&servers().redis, &format!("TTL {key}")).await };
    let guard = leases.take("sale", ["ada"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    assert!(lasts().await > 30 * 86_400);
    let _: i64 = ask_redis(&servers().redis, &format!("EXPIRE {key} 100")).await;
    assert!(guard.renew().await.unwrap());
    assert!(lasts().await > 30 * 86_400, "a held lease keeps its scope");
    // As if the last lease was taken in another hour.
    let _: i64 = ask_redis(&servers().redis, &format!("EXPIRE {key} 100")).await;
    let fence = guard.token() - 3_600_000_000;
    let _: i64 = ask_redis(&servers().redis, &format!("HSET {key} |fence {fence}")).await;
    leases.take("sale", ["bob"], LeaseOptions::default()).await.unwrap().guard.unwrap().abandon();
    assert!(lasts().await > 30 * 86_400);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_options_and_names_are_refused_with_the_reason() {
    let (_world, leases) = leases().await;
    let fine = LeaseOptions::default();
    let too_many: Vec<String> = (0..=MAX_NAMES_PER_CALL).map(|nth| format!("user{nth}")).collect();
    for (scope, names, options, why) in [
        ("sa{le", vec!["ada"], fine, "is not a valid scope"),
        ("", vec!["ada"], fine, "is not a valid scope"),
        ("sale", vec!["a b"], fine, "is not a valid name for a lease"),
        ("sale", vec!["|fence"], fine, "is not a valid name for a lease"),
        ("sale", vec![""], fine, "is not a valid name for a lease"),
        ("sale", vec![], fine, "0 names in one call"),
        ("sale", too_many.iter().map(String::as_str).collect(), fine, "1001 names in one call"),
        ("sale", vec!["ada"], LeaseOptions::lasting(ms(0)), "from 10 ms to a day"),
        ("sale", vec!["ada"], LeaseOptions::lasting(LONG * 10_000), "from 10 ms to a day"),
        (
            "sale",
            vec!["ada"],
            LeaseOptions::lasting(LONG).max_hold(ms(100)),
            "must not be shorter than the lease",
        ),
        ("sale", vec!["ada"], LeaseOptions::lasting(LONG).max_hold(Duration::MAX), "nor longer than 30 days"),
    ] {
        let error = leases.take(scope, names, options).await.err().expect("refused").to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(leases.list("sale").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_lists_shows_and_releases_leases() {
    let (world, leases) = leases().await;
    world.parts().await;
    let guard = leases.take("sale", ["ada", "bob"], LeaseOptions::default()).await.unwrap().guard.unwrap();
    let leader = LeaseOptions::default().renewed_manually();
    let _other = leases.take("_jobs", ["nightly"], leader).await.unwrap();
    leases.wait_until_idle(LONG).await;
    let (code, out, err) = run(Some(&world), &["lease", "list"]).await;
    assert_eq!(code, 0, "{err}");
    assert!(
        ["ada", "bob", "nightly", &guard.token().to_string()].iter().all(|word| out.contains(word)),
        "{out}"
    );
    let (_, out, _) = run(Some(&world), &["lease", "list", "--scope", "sale", "--output", "json"]).await;
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["leases"].as_array().map(Vec::len), Some(2), "{out}");
    assert!(json["leases"][0]["ends_in_ms"].as_u64().is_some_and(|ms| (1..=30_000).contains(&ms)), "{out}");
    let holder = format!("{}@", std::process::id());
    assert!(json["leases"][0]["holder"].as_str().is_some_and(|text| text.starts_with(&holder)), "{out}");

    let (code, out, _) = run(Some(&world), &["lease", "show", "sale", "ada"]).await;
    assert!(code == 0 && out.contains(guard.owner()), "{out}");
    let (code, _, err) = run(Some(&world), &["lease", "show", "sale", "nobody"]).await;
    assert!(code == 1 && err.contains("nobody holds nobody in sale"), "{err}");
    let (code, _, err) = run(Some(&world), &["lease", "show", "sa le", "ada"]).await;
    assert!(code == 2 && err.contains("is not a valid scope"), "{err}");

    let release = ["lease", "release", "sale", "ada", "--token"];
    let why = ["--by", "grace", "--reason", "its host is gone"];
    let with = |token: &'static str| [&release[..], &[token], &why].concat();
    let (code, _, err) = run(Some(&world), &with("1")).await;
    assert!(code == 1 && err.contains("nothing released: ada in sale is held with token"), "{err}");
    let token: &'static str = guard.token().to_string().leak();
    let (code, out, err) = run(Some(&world), &with(token)).await;
    assert!(code == 0 && out.contains("ada in sale is free"), "{out}{err}");
    let (_, acts, err) = run(Some(&world), &["acts", "--limit", "1", "--output", "json"]).await;
    let acts: serde_json::Value = serde_json::from_str(&acts).unwrap_or_else(|_| panic!("{acts}{err}"));
    let act = &acts["acts"][0];
    assert_eq!((&act["kind"], &act["subject"]), (&"lease release".into(), &"sale".into()), "{act}");
    assert_eq!((&act["by"], &act["reason"]), (&"operator grace".into(), &"its host is gone".into()), "{act}");
    assert!(!guard.renew().await.unwrap(), "the holder learns that its lease is gone");
    guard.lost().await;
    let (code, _, err) = run(Some(&world), &with(token)).await;
    assert!(code == 1 && err.contains("nobody holds ada"), "{err}");
}
