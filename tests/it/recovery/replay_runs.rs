//! Replay runs: mistakes, concurrent runs, rate limits, cancelling and resuming, outages, parallel transactions.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use doorbuster::domain::{Act, Entry, Millis, Order, PaymentEntry, Sale, Verdict};
use doorbuster::queue::{DeadLetters, OrderLog, Publisher};
use doorbuster::recovery::replay::{Filter, Finished, Progress, Replay, ReplayError, ReplayRequest, Source};
use doorbuster::rehearsal::chaos::Weather;
use doorbuster::store::{PaymentState, RunState};
use tokio_util::sync::CancellationToken;

use crate::recovery::replay::{act, pay, until_logged};
use crate::support::{Database, World, at_rest, attempt, behind_proxy, buy, run, sale, until, verdicts};

const LONG: Duration = Duration::from_secs(40);

fn write_entries(file: &Path, entries: &[Entry]) {
    let line = |entry: &Entry| serde_json::to_string(entry).unwrap() + "\n";
    std::fs::write(file, entries.iter().map(line).collect::<String>()).unwrap();
}

/// As with a log that is cut between two of the passes over it.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_leaves_the_source_while_it_is_read_is_reported_as_left() {
    let world = World::new(Database::Sqlite).await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 10, 1);
    world.open_sale(&parts, &sale).await;
    let attempts: Vec<_> = (0..4).map(|user| attempt(&sale.id, &format!("user{user}"), None, 1)).collect();
    let accepted =
        verdicts(&parts.gate, &sale.id, &attempts).await.into_iter().map(|verdict| match verdict {
            Verdict::Accepted(order) => order,
            refused => panic!("{refused:?}"),
        });
    let orders: Vec<Order> = accepted.collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.ndjson");
    let payment = PaymentEntry {
        provider: "bank".into(),
        event_id: "evt".into(),
        event: "paid".into(),
        sale_id: sale.id.clone(),
        order_id: orders[0].id,
        user_id: None,
        state: "late".into(),
        new_order_id: None,
        detail: None,
        received_at: Millis::now(),
        due_at: Millis::now(),
        updated_at: Millis::now(),
    };
    let entries: Vec<Entry> =
        orders.into_iter().map(Entry::Accepted).chain([Entry::Payment(Box::new(payment))]).collect();
    write_entries(&file, &entries);
    let request = ReplayRequest { source: Source::File(file.clone()), rate: None, ..slow_log() };
    // Called between the survey and the first write.
    let advance = |_, _| write_entries(&file, &entries[..3]);
    let stages = Mutex::new(Vec::new());
    let read = |stage: &'static str, done: u64| stages.lock().unwrap().push((stage, done));
    let progress = Progress { advance: &advance, read: &read, say: &|_| () };
    let replay = replay_of(&world).await;
    let done = replay.run(&request, "test", &progress, CancellationToken::new()).await.unwrap();
    let counts = &done.report.counts;
    assert_eq!((counts.inserted, counts.vanished, counts.left()), (3, 2, 2));
    assert!(!done.report.is_complete());
    assert_eq!(
        done.report.troubles,
        ["the file no longer has 2 of the orders and payments that it had at first"]
    );
    assert_eq!(
        *stages.lock().unwrap(),
        [
            ("entries surveyed", 1),
            ("entries surveyed", 2),
            ("entries surveyed", 3),
            ("entries surveyed", 4),
            ("entries surveyed", 5),
            ("orders added up", 3)
        ]
    );
    // Nothing is missing from what the file has now.
    let done = replay.run(&request, "test", &progress, CancellationToken::new()).await.unwrap();
    assert!(done.report.is_complete() && done.report.counts.already == 3, "{:?}", done.report);
}

/// A user may have orders in every batch, and only one transaction at a time can hold the user's lease.
#[tokio::test(flavor = "multi_thread")]
async fn many_orders_of_few_users_are_replayed_once_each() {
    const USERS: usize = 20;
    const EACH: usize = 25;
    let world = World::new(Database::Postgres).await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 10_000, 100);
    world.open_sale(&parts, &sale).await;
    let mut orders: Vec<Order> = Vec::new();
    for nth in 0..EACH {
        let key = format!("key-{nth}");
        let attempts: Vec<_> =
            (0..USERS).map(|user| attempt(&sale.id, &format!("user{user}"), Some(&key), 1)).collect();
        for verdict in verdicts(&parts.gate, &sale.id, &attempts).await {
            let Verdict::Accepted(order) = verdict else { panic!("{verdict:?}") };
            orders.push(order);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.ndjson");
    write_entries(&file, &orders.into_iter().map(Entry::Accepted).collect::<Vec<_>>());
    let replay = ["replay", "run", "file", file.to_str().unwrap(), "--yes", "--output", "json"];
    for (inserted, already) in [(USERS * EACH, 0), (0, USERS * EACH)] {
        let (code, out, err) = run(Some(&world), &replay).await;
        let done: serde_json::Value = serde_json::from_str(&out).expect(&err);
        let counts = &done["report"]["counts"];
        assert_eq!(
            (code, &counts["inserted"], &counts["already"], &counts["busy"]),
            (0, &inserted.into(), &already.into(), &0.into()),
            "{done}"
        );
        let totals = parts.store.totals(&sale.id).await.unwrap();
        assert_eq!(totals.live_orders, (USERS * EACH) as u64);
        for user in 0..USERS {
            let rows = parts
                .store
                .orders_of(&sale.id, &format!("user{user}").parse().unwrap(), None, 100)
                .await
                .unwrap();
            assert_eq!(rows.len(), EACH);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_reported_and_a_source_has_one_replay_at_a_time() {
    let world = World::new(Database::Sqlite).await;
    let parts = world.parts().await;
    for (args, code, message) in [
        (&["replay", "run", "nowhere", "--yes"][..], 2, "possible values: outbox, dead-letters, log, file"),
        (&["replay", "run", "file", "--yes"], 2, "FILE"),
        (&["replay", "run", "file", "/no/such/file", "--yes"], 1, "/no/such/file: No such file"),
        (&["replay", "plan", "log", "--since", "2999-01-01T00:00:00Z"], 2, "in the future"),
        (&["replay", "plan", "log", "--since", "yesterday"], 2, "15m"),
        (&["replay", "plan", "log", "--since", "1h", "--until", "2h"], 2, "later than --until"),
        (&["replay", "plan", "outbox", "--reason", "broken"], 2, "dead letters"),
        (&["replay", "plan", "outbox", "--offset", "3"], 2, "the log alone"),
        (&["replay", "plan", "outbox", "--sale", "nobodys"], 2, "knows no sale nobodys"),
        (&["replay", "plan", "log", "--sale", "nobodys"], 2, "there is no sale nobodys"),
        (&["replay", "plan", "dead-letters", "--sale", "nobodys"], 2, "there is no sale nobodys"),
        (&["audit", "--sale", "nobodys"], 1, "there is no sale nobodys"),
        (&["rebuild", "--sale", "nobodys", "--yes"], 1, "there is no sale nobodys"),
        (&["replay", "run", "outbox"], 2, "--yes"),
        (&["replay", "resume", "01890000-0000-7000-8000-000000000000"], 1, "there is no replay"),
        (&["replay", "cancel", "01890000-0000-7000-8000-000000000000"], 1, "is running"),
        (&["export", "--sale", "nobodys", "--file", "-"], 1, "there is no sale nobodys"),
    ] {
        let (got, out, err) = run(Some(&world), args).await;
        assert!(got == code && err.contains(message), "{args:?}: {got} {out}{err}");
    }
    let options = doorbuster::lease::LeaseOptions::lasting(Duration::from_secs(60));
    let other = parts.leases.take("_replay", ["outbox"], options).await.unwrap();
    let (code, _, err) = run(Some(&world), &["replay", "run", "outbox", "--yes"]).await;
    assert!(code == 1 && err.contains("another replay of outbox is under way"), "{err}");
    drop(other);
    let (code, out, err) = run(Some(&world), &["replay", "plan", "log", "--since", "1h"]).await;
    assert!(code == 0 && out.contains("nothing to do"), "an empty log hides nothing: {out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_can_be_slowed_cancelled_and_resumed() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 40, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..12).await;
    at_rest(&running, &sale).await;
    until_logged(&running).await;
    running.stop().await;
    let mut other = World::new(Database::Sqlite).await;
    other.set(&format!("redis.prefix={}", world.name)).set(&format!("queue.prefix={}", world.name));
    let parts = other.parts().await;
    let slow = async {
        run(Some(&other), &["replay", "run", "log", "--rate", "2", "--yes", "--output", "json"]).await
    };
    let end = async {
        let id =
            until("the replay is under way", LONG, async || parts.store.runs(1).await.ok()?.pop()).await.id;
        until("some orders have rows", LONG, async || {
            (parts.store.orders_after(&sale.id, None, 50).await.ok()?.len() > 1).then_some(())
        })
        .await;
        let (code, out, err) = run(Some(&other), &["replay", "cancel", &id.to_string()]).await;
        assert_eq!(code, 0, "{out}{err}");
        id.to_string()
    };
    let ((code, out, err), id) = futures_util::future::join(slow, end).await;
    assert!(code == 3 && out.contains("\"cancelled\"") && err.contains("replay resume"), "{out}{err}");
    let some = parts.store.orders_after(&sale.id, None, 50).await.unwrap().len();
    assert!((1..12).contains(&some), "{some}");
    let (code, out, _) = run(Some(&other), &["replay", "status", &id]).await;
    assert!(code == 0 && out.contains("cancelled"), "{out}");
    // At two a second the rest takes some seconds: the request to cancel does not outlive the resume.
    let (code, out, err) = run(Some(&other), &["replay", "resume", &id]).await;
    assert!(code == 0 && out.contains("is done"), "{out}{err}");
    assert_eq!(parts.store.orders_after(&sale.id, None, 50).await.unwrap().len(), 12);
    let (code, _, err) = run(Some(&other), &["replay", "resume", &id]).await;
    assert!(code == 1 && err.contains("has finished"), "{err}");
}

/// A sale of eight orders, three of them cancelled and, if `paid`, one paid. The returned world has an empty
/// database.
async fn with_lost_database(kind: Database, paid: bool) -> (World, Sale) {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 40, 1);
    world.open_sale(&running.parts, &sale).await;
    let orders = buy(&running, &sale, 0..8).await;
    at_rest(&running, &sale).await;
    for order in &orders[..3] {
        act(&running, &sale, *order, Act::Cancel).await;
    }
    if paid {
        pay(&running, &sale, orders[3]).await;
    }
    until_logged(&running).await;
    running.stop().await;
    let mut other = World::new(kind).await;
    other.set(&format!("redis.prefix={}", world.name)).set(&format!("queue.prefix={}", world.name));
    (other, sale)
}

async fn replay_of(world: &World) -> Replay {
    let parts = world.parts().await;
    let publisher = Publisher::open(world.config().queue());
    Replay {
        gate: parts.gate.clone(),
        store: parts.store.clone(),
        leases: parts.leases.clone(),
        dead_letters: DeadLetters::open(world.config().queue()),
        log: OrderLog::with(world.config().queue(), publisher.clone()),
        publisher,
    }
}

/// Requests the whole log, slowly enough that a server can fail in the middle.
fn slow_log() -> ReplayRequest {
    ReplayRequest {
        source: Source::Log,
        filter: Filter::default(),
        rate: Some(1),
        max_queue: 1_000,
        max_latency_ms: 60_000,
        max_replays: 3,
        accept_loss: false,
    }
}

/// Replays the log. `advance` receives its progress, `say` the reasons why it waits.
async fn replay_log(
    world: &World,
    advance: &(dyn Fn(u64, u64) + Sync),
    say: &(dyn Fn(&str) + Sync),
) -> Result<Finished, ReplayError> {
    let replay = replay_of(world).await;
    replay
        .run(&slow_log(), "test", &Progress { advance, read: &|_, _| (), say }, CancellationToken::new())
        .await
}

/// The broker is up when the plan begins, and then confirms nothing for longer than `queue.timeout_ms`.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_waits_for_a_broker_that_is_slow_to_confirm_the_end_mark() {
    let (mut world, _) = with_lost_database(Database::Sqlite, false).await;
    world.set("queue.timeout_ms=1000");
    let proxy = behind_proxy(&mut world, "queue.url").await;
    let replay = replay_of(&world).await;
    replay.publisher.wait_until_up().await;
    proxy.set(Weather::Frozen);
    let waits = AtomicBool::new(false);
    let say = |text: &str| {
        if text.contains("waiting: the broker") {
            waits.store(true, Ordering::SeqCst);
            proxy.set(Weather::Fair);
        }
    };
    let progress = Progress { advance: &|_, _| {}, read: &|_, _| (), say: &say };
    let plan =
        replay.plan(&slow_log(), &progress, CancellationToken::new()).await.expect("it waits out the outage");
    assert!(waits.into_inner(), "the plan never met the broker's outage");
    assert_eq!(plan.counts.inserted, 8, "{plan:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_waits_out_a_broker_outage() {
    let (mut world, sale) = with_lost_database(Database::Sqlite, true).await;
    world.set("queue.timeout_ms=1000");
    let proxy = behind_proxy(&mut world, "queue.url").await;
    let parts = world.parts().await;
    let rows = async || parts.store.orders_after(&sale.id, None, 50).await.unwrap_or_default().len();
    let waits = AtomicBool::new(false);
    let say = |text: &str| {
        waits.fetch_or(text.contains("waiting: the broker"), Ordering::SeqCst);
    };
    let run = replay_log(&world, &|_, _| {}, &say);
    let outage = async {
        // Ended orders come first. The log is read a second time for live orders.
        until("some orders have rows", LONG, async || (rows().await > 0).then_some(())).await;
        proxy.set(Weather::Frozen);
        until("the replay waits", LONG, async || waits.load(Ordering::SeqCst).then_some(())).await;
        assert_eq!(rows().await, 3, "only the ended orders have rows");
        proxy.set(Weather::Fair);
    };
    let (done, ()) = futures_util::future::join(run, outage).await;
    let done = done.expect("it waits out the outage");
    assert_eq!((done.state, done.report.counts.inserted), (RunState::Done, 8), "{:?}", done.report);
    assert_eq!(rows().await, 8);
}

/// The steps after the last batch wait as well: a payment, or the comparison of the books.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_waits_out_a_database_outage_after_its_last_order() {
    for paid in [true, false] {
        let (mut world, _) = with_lost_database(Database::Postgres, paid).await;
        world.set("database.timeout_ms=3000");
        let proxy = behind_proxy(&mut world, "database.url").await;
        let advance = |done: u64, total: u64| {
            if done > 0 && done == total {
                proxy.set(Weather::Frozen);
            }
        };
        // The first run ends with a new line; another has nothing left to do but compare the books.
        let runs = if paid { &[8][..] } else { &[8, 0] };
        for inserted in runs.iter().copied() {
            let waits = AtomicBool::new(false);
            let say = |text: &str| {
                if text.contains("waiting: the database") {
                    waits.store(true, Ordering::SeqCst);
                    proxy.set(Weather::Fair);
                }
            };
            let done = replay_log(&world, &advance, &say).await.expect("it waits out the outage");
            assert!(waits.into_inner(), "the replay never met the database's outage");
            assert_eq!(
                (done.state, done.report.counts.inserted),
                (RunState::Done, inserted),
                "{:?}",
                done.report
            );
            assert_eq!(done.report.after.len(), 1, "{:?}", done.report);
        }
        let payments = world.parts().await.store.payments(PaymentState::Applied, 10).await.unwrap();
        assert_eq!(payments.len(), usize::from(paid), "{payments:?}");
    }
}
