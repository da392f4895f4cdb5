//! Whatever process is the first to write to a restarted Redis, what that Redis lost stays visible.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbuster::domain::{Act, CLOCK_SKEW, Millis, OrderId, Sale, SaleState};
use doorbuster::gate::GateError;
use doorbuster::lease::LeaseOptions;
use doorbuster::process::{Role, Running};
use doorbuster::rehearsal::servers::{Ending, Kind, Server};
use sqlx::{Connection as _, Executor as _};
use tokio::time::Instant;

use super::pages::{address, private_redis_behind};
use super::repair::{act, left};
use crate::support::{
    Buyer, Database, Doorbuster, World, ask_redis, at_rest, attempt, buy, everything_is_witnessed,
    private_redis, redis_second, request, roll_redis_back, run, sale, until, verdicts,
};

/// Redis has lost an order that only queue and log know, and no process has run since.
async fn without_the_last_order(world: &mut World, folder: &Path) -> (Server, Sale, [OrderId; 2]) {
    world.set("gate.rebuild=manual");
    let redis = private_redis(world, folder).await;
    let front = world.running_as(Role::Front).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&front.parts, &sale).await;
    let kept = buy(&front, &sale, 0..1).await[0];
    at_rest(&front, &sale).await;
    worker.stop().await;
    let second = redis_second(&front.parts.gate).await;
    let lost = buy(&front, &sale, 1..2).await[0];
    front.stop().await;
    redis.stop(Ending::AtOnce).await;
    roll_redis_back(folder, second);
    (private_redis(world, folder).await, sale, [kept, lost])
}

async fn sells_nothing_until_it_is_rebuilt(world: &World, sale: &Sale, left_then: i64) {
    let running = world.running().await;
    let eve = Buyer::of(&running, "eve").buy(sale.id.as_str(), "k").await;
    assert_eq!((eve.status, eve.code()), (503, "sale_paused"), "{}", eve.text);
    assert_eq!(
        running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").state,
        SaleState::Frozen
    );
    let (code, out, err) = run(Some(world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
    assert_eq!(code, 0, "{out}{err}");
    at_rest(&running, sale).await;
    assert_eq!(left(&running.parts, sale).await, left_then);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_does_not_hide_what_redis_lost() {
    let (mut world, folder) = (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap());
    let (redis, sale, [kept, _]) = without_the_last_order(&mut world, folder.path()).await;
    let (code, out, err) = run(Some(&world), &["order", "cancel", sale.id.as_str(), &kept.to_string()]).await;
    assert_eq!(code, 0, "{out}{err}");
    sells_nothing_until_it_is_rebuilt(&world, &sale, 8).await;
    redis.stop(Ending::AtOnce).await;
}

/// A process that has just started compares the books before its first commit. This one did so before Redis restarted.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_by_a_process_that_outlives_redis_does_not_hide_what_redis_lost() {
    let (mut world, folder) = (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap());
    world.set("gate.rebuild=manual").set("database.connections=1");
    let (redis, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let front = world.running_as(Role::Front).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&front.parts, &sale).await;
    let orders = buy(&front, &sale, 0..2).await;
    at_rest(&front, &sale).await;
    worker.stop().await;
    let outlives = world.parts().await;
    act(&outlives, &sale, orders[1], Act::Pay).await;
    let second = redis_second(&front.parts.gate).await;
    buy(&front, &sale, 2..3).await;
    front.stop().await;
    redis.stop(Ending::AtOnce).await;
    roll_redis_back(folder.path(), second);
    let redis = Server::start(Kind::Redis, folder.path()).await.unwrap();
    proxy.point_to(vec![address(&redis.url)]);
    until("Redis answers", Duration::from_secs(60), async || outlives.gate.ping().await.ok()).await;
    act(&outlives, &sale, orders[0], Act::Cancel).await;
    sells_nothing_until_it_is_rebuilt(&world, &sale, 7).await;
    redis.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_does_not_hide_what_redis_lost() {
    let (mut world, folder) = (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap());
    let (redis, sale, [_, lost]) = without_the_last_order(&mut world, folder.path()).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    until("the lost order has its row", Duration::from_secs(60), async || {
        worker.parts.store.order(lost).await.ok()?
    })
    .await;
    worker.stop().await;
    sells_nothing_until_it_is_rebuilt(&world, &sale, 7).await;
    redis.stop(Ending::AtOnce).await;
}

/// Without the order log nobody can tell what Redis has lost. Until then its buyers hear nothing that may be wrong.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_redis_lost_is_not_denied_before_it_is_compared() {
    let (mut world, folder) = (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap());
    let (redis, sale, [_, lost]) = without_the_last_order(&mut world, folder.path()).await;
    let queue = world.config().queue.url;
    world.set("queue.url=amqp://127.0.0.1:1");
    let front = Running::start(&world.config(), Role::Front).await.unwrap();
    let (bob, orders) = (Buyer::of(&front, "user1"), format!("/v1/sales/{}/orders", sale.id));
    for _ in 0..10 {
        for path in [format!("{orders}/{lost}"), format!("{orders}/mine")] {
            let read = bob.get(&path).await;
            assert_eq!((read.status, read.code()), (503, "status_unavailable"), "{path}: {}", read.text);
        }
        let again = bob.buy(sale.id.as_str(), "k").await;
        assert_eq!(again.status, 503, "{}", again.text);
    }
    front.stop().await;
    world.set(&format!("queue.url={queue}"));
    sells_nothing_until_it_is_rebuilt(&world, &sale, 7).await;
    redis.stop(Ending::AtOnce).await;
}

/// Redis comes back with the entry of an order that has been confirmed and paid since. A settlement takes no number, so
/// the gate is behind only if it has forgotten another order, too.
async fn reads_an_order_whose_settlement_redis_lost(forgets_another: bool) {
    let (mut world, folder) = (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap());
    world.set("gate.rebuild=manual");
    let (redis, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&front.parts, &sale).await;
    let order = buy(&front, &sale, 0..1).await[0];
    let second = redis_second(&front.parts.gate).await;
    buy(&front, &sale, 1..1 + u32::from(forgets_another)).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    at_rest(&front, &sale).await;
    act(&front.parts, &sale, order, Act::Pay).await;
    redis.stop(Ending::AtOnce).await;
    roll_redis_back(folder.path(), second);
    let redis = Server::start(Kind::Redis, folder.path()).await.unwrap();
    let outbox = format!("HLEN {}:{{{}}}:outbox", world.name, sale.id);
    assert_eq!(ask_redis::<i64>(&redis.url, &outbox).await, 1, "the entry is back");
    proxy.point_to(vec![address(&redis.url)]);
    let buyer = Buyer::of(&front, "user0");
    let path = format!("/v1/sales/{}/orders/{order}", sale.id);
    let reads_paid = async || {
        for read in [buyer.get(&path).await, buyer.buy(sale.id.as_str(), "k").await] {
            assert!(read.status == 503 || read.json["status"] == "paid", "{}", read.text);
        }
    };
    until("the gate is compared", Duration::from_secs(60), async || {
        reads_paid().await;
        front.parts.gate.is_compared().await.is_ok_and(|compared| compared).then_some(())
    })
    .await;
    let gate = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    // The sweep settles the order again, unless the gate is frozen.
    assert_eq!(gate.state == SaleState::Frozen, forgets_another);
    assert!(gate.waiting == 1 || !forgets_another, "{gate:?}");
    reads_paid().await;
    let (code, out, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(buyer.get(&path).await.json["status"], "paid");
    at_rest(&front, &sale).await;
    worker.stop().await;
    front.stop().await;
    redis.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_settlement_redis_lost_is_read_from_its_row() {
    reads_an_order_whose_settlement_redis_lost(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_settlement_a_frozen_gate_lost_is_read_from_its_row() {
    reads_an_order_whose_settlement_redis_lost(true).await;
}

/// Redis does nothing else while it frees a million users, so it has to do that in the background.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_has_redis_free_the_old_users_in_the_background() {
    let (mut world, folder) = (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap());
    let redis = private_redis(&mut world, folder.path()).await;
    let (parts, sale) = (world.parts().await, sale(&world.name, 100, 1));
    world.open_sale(&parts, &sale).await;
    let attempts: Vec<_> = (0..90).map(|nth| attempt(&sale.id, &format!("user{nth}"), None, 1)).collect();
    verdicts(&parts.gate, &sale.id, &attempts).await;
    let _: String = ask_redis(&redis.url, "CONFIG RESETSTAT").await;
    let (code, out, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
    assert!(code == 0 && out.contains("90 users"), "{out}{err}");
    let memory: String = ask_redis(&redis.url, "INFO memory").await;
    let freed = memory.lines().find_map(|line| line.strip_prefix("lazyfreed_objects:"));
    assert_eq!(freed.map(str::trim), Some("1"), "{memory}");
    redis.stop(Ending::AtOnce).await;
}

/// Nothing is sold until Redis is compared, so nobody waits long for a process that has died or cannot reach a server.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_does_not_finish_its_comparison_holds_nobody_up() {
    let (mut world, folder) = (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap());
    let (redis, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..1).await;
    redis.stop(Ending::AtOnce).await;
    let redis = Server::start(Kind::Redis, folder.path()).await.unwrap();
    let mut other = World::with(world.overrides.clone());
    other.set(&format!("redis.url={}", redis.url));
    let comparing = LeaseOptions::lasting(Duration::from_secs(60));
    let stuck = other.parts().await.leases.take("_compare", ["redis"], comparing).await.unwrap().guard;
    assert!(stuck.is_some());
    let came_back = Instant::now();
    proxy.point_to(vec![address(&redis.url)]);
    until("it sells again", Duration::from_secs(60), async || {
        (Buyer::of(&running, "eve").buy(sale.id.as_str(), "k").await.status == 202).then_some(())
    })
    .await;
    assert!(came_back.elapsed() < Duration::from_secs(10), "{:?}", came_back.elapsed());
    drop(stuck);
    running.stop().await;
    redis.stop(Ending::AtOnce).await;
}

/// An idle sale was opened hours ago.
#[tokio::test(flavor = "multi_thread")]
async fn one_process_compares_for_all_and_reads_only_the_end_of_the_log() {
    let (mut world, folder) = (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap());
    world.set("maintenance.every_ms=100");
    let redis = private_redis(&mut world, folder.path()).await;
    let running = world.running().await;
    let (idle, busy) = (sale(&format!("{}i", world.name), 9, 1), sale(&world.name, 9, 1));
    world.open_sale(&running.parts, &idle).await;
    world.open_sale(&running.parts, &busy).await;
    buy(&running, &busy, 0..3).await;
    at_rest(&running, &busy).await;
    everything_is_witnessed(&running, &busy).await;
    let position = until("the position in the log is recorded", Duration::from_secs(60), async || {
        running.parts.store.replay_from().await.ok()?
    })
    .await;
    running.stop().await;
    let mut database = sqlx::SqliteConnection::connect(&world.config().database.url).await.unwrap();
    database.execute("UPDATE sales SET created_at_ms = created_at_ms - 7200000").await.unwrap();
    redis.stop(Ending::AtOnce).await;
    let redis = private_redis(&mut world, folder.path()).await;
    let (one, other) = tokio::join!(Doorbuster::start(&world, "front"), Doorbuster::start(&world, "front"));
    for front in [&one, &other] {
        until("the front is ready", Duration::from_secs(60), async || {
            let ready = request(front.operations, "GET", "/readyz", &[], b"").await;
            (ready.json["dependencies"]["redis"]["up"] == true).then_some(())
        })
        .await;
    }
    let logged = |says: &str| [one.logged(says), other.logged(says)].concat();
    let comparisons = logged("compares redis with");
    // On a busy machine the second may have waited so long that it helps.
    assert_eq!(comparisons.len(), 1 + logged("compares redis too").len(), "{comparisons:?}");
    let line: serde_json::Value = serde_json::from_str(&comparisons[0]).unwrap();
    let log_from: Millis = line["fields"]["log_from"].as_str().unwrap().parse().unwrap();
    assert!(log_from.plus(2 * CLOCK_SKEW) >= position, "{log_from} is before {position}");
    // A rebuild of the old sale reads no more of it.
    let rebuild = ["rebuild", "--sale", busy.id.as_str(), "--yes", "--output", "json"];
    let (code, out, err) = run(Some(&world), &rebuild).await;
    assert_eq!(code, 0, "{out}{err}");
    let rebuilt: serde_json::Value = serde_json::from_str(&out).unwrap();
    let read_from: Millis = serde_json::from_value(rebuilt["log_read_from"].clone()).unwrap();
    assert!(read_from.plus(2 * CLOCK_SKEW) >= position, "{read_from} is before {position}");
    drop((one, other));
    redis.stop(Ending::AtOnce).await;
}

/// What has the script counts as compared for every process, so a Redis must not get it before.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_starts_during_the_comparison_is_compared_itself() {
    let mut world = World::new(Database::Sqlite).await;
    let (folder, other_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (redis, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let other = Server::start(Kind::Redis, other_folder.path()).await.unwrap();
    let (proxy, target) = (Arc::new(proxy), address(&other.url));
    let gate = world.parts().await.gate.for_reading();
    let known_before = Arc::new(Mutex::new(Vec::new()));
    let known = known_before.clone();
    gate.compare_restarts_with(move |gate| {
        let (proxy, known) = (proxy.clone(), known.clone());
        Box::pin(async move {
            let is_compared = gate.is_compared().await?;
            let is_first = known.lock().unwrap().is_empty();
            known.lock().unwrap().push(is_compared);
            if is_first {
                // The connection in use stays where it is. A gate replaces it only when it has been open for a while.
                proxy.point_to(vec![target]);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok::<_, GateError>(())
        })
    });
    gate.ensure_compared().await.unwrap();
    assert_eq!(*known_before.lock().unwrap(), [false, false], "each was compared before it had the script");
    assert!(gate.is_compared().await.unwrap());
    redis.stop(Ending::AtOnce).await;
    other.stop(Ending::AtOnce).await;
}
