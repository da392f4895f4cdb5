//! Waiting for a lease: who is woken, and what a cancelled wait leaves behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use doorbuster::lease::{Guard, LeaseOptions, Leases, Released};
use doorbuster::rehearsal::chaos::Weather;

use crate::seams::lease::{leases, leases_of, ms};
use crate::support::{World, ask_redis, behind_proxy, servers, until};

const LONG: Duration = Duration::from_secs(60);

/// A lease that outlives the test, so that one left behind is found.
fn hour() -> LeaseOptions {
    LeaseOptions::lasting(Duration::from_secs(3_600)).max_hold(Duration::from_secs(3_600))
}

async fn channels(world: &World) -> usize {
    let channels: Vec<String> =
        ask_redis(&servers().redis, &format!("PUBSUB CHANNELS {}:*", world.name)).await;
    channels.len()
}

/// Asserts that no lease, watchdog entry, channel or waiter is left.
async fn nothing_is_left(world: &World, leases: &Leases, scope: &str) {
    assert!(leases.wait_until_idle(LONG).await);
    assert_eq!((leases.held(), leases.waiting()), (0, 0));
    assert_eq!(leases.list(scope).await.unwrap(), []);
    until("no channel is left", LONG, async || (channels(world).await == 0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_times_out() {
    let (world, leases) = leases().await;
    let held = leases.take("sale", ["ada"], hour()).await.unwrap().guard.unwrap();
    let begin = Instant::now();
    assert!(leases.acquire("sale", ["ada"], hour(), ms(300)).await.unwrap().is_none());
    assert!(begin.elapsed() >= ms(300));
    held.release().await.unwrap();
    nothing_is_left(&world, &leases, "sale").await;
}

fn waiting(leases: &Leases) -> tokio::task::JoinHandle<Option<Guard>> {
    let leases = leases.clone();
    tokio::spawn(async move { leases.acquire("sale", ["ada"], hour(), LONG).await.unwrap() })
}

/// Thirty times. A waiter that only polled would need eleven seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_a_waiter() {
    let (world, leases) = leases().await;
    let mut token = 0;
    let mut slept = Duration::ZERO;
    for _ in 0..30 {
        let held = leases.take("sale", ["ada"], hour()).await.unwrap().guard.unwrap();
        assert!(held.token() > token);
        let waiting = waiting(&leases);
        until("the waiter listens for releases", LONG, async || {
            (channels(&world).await == 1 && leases.waiting() == 1).then_some(())
        })
        .await;
        let begin = Instant::now();
        held.release().await.unwrap();
        let guard = waiting.await.unwrap().expect("a waiter that gets the released lease");
        slept += begin.elapsed();
        token = guard.token();
        guard.release().await.unwrap();
    }
    assert!(slept < Duration::from_secs(8), "{slept:?} for thirty releases");
    nothing_is_left(&world, &leases, "sale").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_release_wakes_a_waiter() {
    let (_world, leases) = leases().await;
    let held = leases.take("sale", ["ada"], hour()).await.unwrap().guard.unwrap();
    let waiting = waiting(&leases);
    until("the task waits", LONG, async || (leases.waiting() == 1).then_some(())).await;
    assert!(leases.force_release("sale", "ada", held.token()).await.unwrap());
    assert!(waiting.await.unwrap().is_some());
}

/// A release that no notification announces is found by polling.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_hears_no_release_polls() {
    let (mut world, _) = leases().await;
    let folder = tempfile::tempdir().unwrap();
    let server = crate::support::private_redis(&mut world, folder.path()).await;
    let leases = crate::seams::lease::leases_of(&world);
    let held = leases.take("sale", ["ada"], hour()).await.unwrap().guard.unwrap();
    // Nobody may use the channels, so the waiter hears of no release.
    let _: () = ask_redis(&server.url, "ACL SETUSER default resetchannels").await;
    let waiting = waiting(&leases);
    until("the task waits", LONG, async || (leases.waiting() == 1).then_some(())).await;
    assert_eq!(
        held.release().await.unwrap(),
        Released::Freed,
        "the release cannot be announced, and still frees the lease"
    );
    assert!(waiting.await.unwrap().is_some());
    server.stop(doorbuster::rehearsal::servers::Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_survives_an_outage() {
    let (mut world, direct) = leases().await;
    world.set("redis.timeout_ms=200");
    let proxy = crate::support::behind_proxy(&mut world, "redis.url").await;
    let leases = crate::seams::lease::leases_of(&world);
    let held = direct.take("sale", ["ada"], hour()).await.unwrap().guard.unwrap();
    let waiting = waiting(&leases);
    until("the task waits", LONG, async || (leases.waiting() == 1).then_some(())).await;
    proxy.set(Weather::Down);
    held.release().await.unwrap();
    until("the waiter has met the outage", LONG, async || (leases.waiting() == 0).then_some(())).await;
    proxy.set(Weather::Fair);
    assert!(waiting.await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_goes_to_a_waiter() {
    let (_world, leases) = leases().await;
    let options = LeaseOptions::lasting(ms(400)).renewed_manually();
    leases.take("sale", ["ada"], options).await.unwrap().guard.unwrap().abandon();
    assert!(leases.acquire("sale", ["ada"], hour(), LONG).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_for_the_same_names_in_another_order_do_not_deadlock() {
    let (world, leases) = leases().await;
    let first = leases.take("sale", ["ada", "bob"], hour()).await.unwrap().guard.unwrap();
    let many: Vec<_> = (0..40)
        .map(|nth| {
            let leases = leases.clone();
            tokio::spawn(async move {
                let names = if nth % 2 == 0 { ["ada", "bob"] } else { ["bob", "ada"] };
                let guard =
                    leases.acquire("sale", names, hour(), LONG).await.unwrap().expect("the lease in time");
                guard.release().await.unwrap();
            })
        })
        .collect();
    until("all tasks wait", LONG, async || (leases.waiting() == 40).then_some(())).await;
    first.release().await.unwrap();
    for one in many {
        one.await.unwrap();
    }
    nothing_is_left(&world, &leases, "sale").await;
}

/// At any moment: before the request is sent, while it is on its way, and when the answer has arrived.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_wait_leaves_no_lease_behind() {
    let (mut world, leases) = leases().await;
    // Cancelled while the reply is on its way.
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let slow = leases_of(&world);
    drop(slow.take("sale", ["ada"], hour()).await.unwrap().guard.expect("free"));
    nothing_is_left(&world, &slow, "sale").await;
    proxy.set(Weather::Slow(ms(300)));
    let taking = slow.acquire("sale", ["ada"], hour(), LONG);
    assert!(tokio::time::timeout(ms(450), taking).await.is_err());
    proxy.set(Weather::Fair);
    nothing_is_left(&world, &slow, "sale").await;

    let rounds = (0..300u64).map(|nth| {
        let leases = leases.clone();
        async move {
            let name = format!("user{}", nth % 20);
            let names = [name.as_str(), "everybody"];
            let limit = match nth % 30 {
                0 => Duration::ZERO,
                1 => LONG,
                _ => Duration::from_micros(rand::random_range(0..30_000)),
            };
            let taking = leases.acquire("sale", names, hour(), LONG);
            let guard = tokio::time::timeout(limit, taking).await;
            guard.is_ok()
        }
    });
    let acquired =
        futures_util::future::join_all(rounds).await.into_iter().filter(|acquired| *acquired).count();
    assert!((10..=290).contains(&acquired), "{acquired} of 300 acquired it: ten must, ten cannot");
    leases.wait_until_idle(LONG).await;
    nothing_is_left(&world, &leases, "sale").await;
}

/// Shows exclusion with work that nothing else protects: read, wait, write.
#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_turns_on_five_keys_by_32_tasks_exclude_each_other() {
    let (world, leases) = leases().await;
    struct Key {
        value: AtomicU64,
        inside: AtomicI64,
    }
    let keys: Arc<Vec<Key>> =
        Arc::new((0..5).map(|_| Key { value: AtomicU64::new(0), inside: AtomicI64::new(0) }).collect());
    // Two handles with separate connections, as two processes would have.
    let other = crate::seams::lease::leases_of(&world);
    let tasks = (0..32u64).map(|task| {
        let (leases, keys) = (if task % 2 == 0 { leases.clone() } else { other.clone() }, keys.clone());
        tokio::spawn(async move {
            for turn in task..task + 157 {
                let at = (turn % 5) as usize;
                let name = format!("key{at}");
                let guard = leases.acquire("sale", [name.as_str()], hour(), LONG).await.unwrap();
                let guard = guard.expect("the lease in time");
                let key = &keys[at];
                assert_eq!(key.inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                let read = key.value.load(Ordering::SeqCst);
                // The protected work. The pause gives a second holder time to interfere.
                tokio::time::sleep(Duration::from_micros(100)).await;
                key.value.store(read + 1, Ordering::SeqCst);
                key.inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        })
    });
    for task in futures_util::future::join_all(tasks).await {
        task.unwrap();
    }
    let counted: u64 = keys.iter().map(|key| key.value.load(Ordering::SeqCst)).sum();
    assert_eq!(counted, 32 * 157, "a turn was overwritten by another");
    other.wait_until_idle(LONG).await;
    assert_eq!((other.held(), other.waiting()), (0, 0));
    nothing_is_left(&world, &leases, "sale").await;
}

/// Ten tasks wait, and nine of them are cancelled while the lease is released. If the wake-up went to one of the nine,
/// it must still reach the tenth.
#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_is_not_lost_when_waiters_leave() {
    let (world, leases) = leases().await;
    let held = leases.take("sale", ["ada"], hour()).await.unwrap().guard.unwrap();
    let mut waiting: Vec<_> = (0..10)
        .map(|_| {
            let leases = leases.clone();
            tokio::spawn(async move { leases.acquire("sale", ["ada"], hour(), LONG).await })
        })
        .collect();
    until("all tasks wait", LONG, async || (leases.waiting() == 10).then_some(())).await;
    let last = waiting.pop().expect("ten");
    let releasing = tokio::spawn(held.release());
    // The first in line, which the release wakes, is among the cancelled.
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    releasing.await.unwrap().unwrap();
    assert!(last.await.unwrap().unwrap().is_some());
    nothing_is_left(&world, &leases, "sale").await;
}
