//! Servers that are unavailable, slow, full, purged or set back in time.

use std::path::Path;
use std::time::Duration;

use doorbuster::audit::audit;
use doorbuster::domain::{ActRequest, SaleState, Verdict};
use doorbuster::process::{Role, Running};
use doorbuster::rehearsal::chaos::Weather;
use doorbuster::rehearsal::servers::Ending;
use lapin::options::QueuePurgeOptions;

use crate::support::{
    Buyer, Database, World, ask_redis, at_rest, attempt, behind_proxy, private_redis, request, sale, until,
};

const LONG: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread")]
async fn a_late_gate_reply_is_an_unknown_outcome_and_the_same_key_resolves_it() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("redis.timeout_ms=400").set("intake.sale_cache_ms=60000");
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    // From here on the front has the sale in its cache.
    assert_eq!(Buyer::of(&running, "first").buy(sale.id.as_str(), "k").await.status, 202);
    let ada = Buyer::of(&running, "ada");
    proxy.set(Weather::AnswersLost);
    let unknown = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!((unknown.status, unknown.code()), (504, "outcome_unknown"), "{}", unknown.text);
    assert_eq!(unknown.json.get("order_id"), None, "an id that may never be an order: {}", unknown.text);
    proxy.set(Weather::Fair);
    let answer = until("the gate answers again", LONG, async || {
        Some(ada.buy(sale.id.as_str(), "k").await).filter(|answer| answer.status < 500)
    })
    .await;
    assert!(
        [200, 202].contains(&answer.status) && !answer.order_id().is_empty(),
        "the script had run, so the order is there: {}",
        answer.text
    );
    let again = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(again.order_id(), answer.order_id(), "the first id stays");
    assert_eq!(at_rest(&running, &sale).await.live_orders, 2);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_of_a_purged_queue_are_published_again_without_a_later_order() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("sweep.overtaken_after_ms=1000").set("sweep.every_ms=100").set("sweep.spacing_ms=500");
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&front.parts, &sale).await;
    for user in ["ada", "bob", "eve"] {
        let answer = Buyer::of(&front, user).buy(sale.id.as_str(), "k").await;
        assert_eq!(answer.json["durability"], "broker", "{}", answer.text);
    }
    let channel = crate::seams::queue::channel(&world).await;
    let queue = format!("{}.orders", world.name);
    assert_eq!(channel.queue_purge(queue.as_str().into(), QueuePurgeOptions::default()).await.unwrap(), 3);
    let worker = world.running_as(Role::Worker).await;
    assert_eq!(at_rest(&front, &sale).await.live_orders, 3);
    worker.stop().await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_outage_counts_no_attempt_and_orders_stay_readable() {
    let mut world = World::new(Database::Postgres).await;
    world.set("worker.hold_ms=500").set("database.timeout_ms=1000");
    let proxy = behind_proxy(&mut world, "database.url").await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    assert_eq!(Buyer::of(&running, "first").buy(sale.id.as_str(), "k").await.status, 202);
    // Nothing else may be pending in the worker or the queue when the count begins.
    at_rest(&running, &sale).await;
    proxy.set(Weather::Down);
    for user in ["ada", "bob", "eve"] {
        let buyer = Buyer::of(&running, user);
        let answer = buyer.buy(sale.id.as_str(), "k").await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        assert_eq!(buyer.get(&answer.headers["location"]).await.json["status"], "accepted");
    }
    let dead_letters = running.parts.dead_letters.clone().expect("dead letters");
    until("the worker has returned its deliveries to the queue", LONG, async || {
        dead_letters.depths().filter(|depths| depths.orders >= 3)
    })
    .await;
    proxy.set(Weather::Fair);
    assert_eq!(at_rest(&running, &sale).await.live_orders, 4);
    until("the queue is empty", LONG, async || dead_letters.depths().filter(|depths| depths.orders == 0))
        .await;
    assert_eq!(dead_letters.depths().expect("connected").dead, 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_broker_counts_as_unavailable_before_its_connection_is_lost() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("queue.timeout_ms=60000");
    let proxy = behind_proxy(&mut world, "queue.url").await;
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&front.parts, &sale).await;
    world.vouch_for_redis(&sale).await;
    proxy.set(Weather::Frozen);
    let first = Buyer::of(&front, "ada").buy(sale.id.as_str(), "k").await;
    assert_eq!((first.status, first.json["durability"].as_str()), (202, Some("outbox")));
    let publisher = front.parts.publisher.clone().expect("a publisher");
    // Far sooner than missed heartbeats would end the connection (20 s), or the deadline (60 s).
    until("the broker counts as unavailable", Duration::from_secs(8), async || {
        (!publisher.is_up()).then_some(())
    })
    .await;
    let second = Buyer::of(&front, "bob").buy(sale.id.as_str(), "k").await;
    assert_eq!((second.status, second.json["durability"].as_str()), (202, Some("outbox")));
    proxy.set(Weather::Fair);
    until("the broker is up again", LONG, async || publisher.is_up().then_some(())).await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hangs_while_queues_are_declared_counts_as_unavailable() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("queue.timeout_ms=60000");
    let proxy = behind_proxy(&mut world, "queue.url").await;
    let front = world.running_as(Role::Front).await;
    let publisher = front.parts.publisher.clone().expect("a publisher");
    until("the broker is up", LONG, async || publisher.is_up().then_some(())).await;
    // What a front publishes at its start has its confirms by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    proxy.set(Weather::Frozen);
    // Nothing waits for a confirm, so only the declaration every five seconds can notice.
    until("the broker counts as unavailable", Duration::from_secs(15), async || {
        (!publisher.is_up()).then_some(())
    })
    .await;
    proxy.set(Weather::Fair);
    until("the broker is up again", LONG, async || publisher.is_up().then_some(())).await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_queued_behind_a_hanging_broker_do_not_wait_for_it() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("queue.timeout_ms=60000").set("intake.confirm_within_ms=10000");
    let proxy = behind_proxy(&mut world, "queue.url").await;
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 100, 1);
    world.open_sale(&front.parts, &sale).await;
    world.vouch_for_redis(&sale).await;
    proxy.set(Weather::Frozen);
    let click = |nth: u64| {
        let (buyer, sale) = (Buyer::of(&front, &format!("user{nth}")), sale.id.clone());
        tokio::spawn(async move { buyer.buy(sale.as_str(), "k").await })
    };
    // As many messages of one order as may be in flight, and behind them a crowd that is in no message yet.
    let mut under_way = Vec::new();
    for nth in 1..=4 {
        under_way.push(click(nth));
        until("the gate has the order", LONG, async || {
            let gate = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
            // `vouch_for_redis` has put one order into the gate already.
            (gate.waiting > nth).then_some(())
        })
        .await;
    }
    let behind = futures_util::future::join_all((5..30).map(click));
    // A broker counts as unavailable after a second of silence. Waiting for its confirm would take ten.
    let answers =
        tokio::time::timeout(Duration::from_secs(6), behind).await.expect("nobody waits for the broker");
    for answer in answers.into_iter().chain(futures_util::future::join_all(under_way).await) {
        let answer = answer.unwrap();
        assert_eq!(
            (answer.status, answer.json["durability"].as_str()),
            (202, Some("outbox")),
            "{}",
            answer.text
        );
    }
    proxy.set(Weather::Fair);
    let worker = world.running_as(Role::Worker).await;
    assert_eq!(at_rest(&front, &sale).await.live_orders, 30, "the sweep has published all of them");
    worker.stop().await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_order_of_several_units_pauses_the_sale_and_the_audit_names_the_missing_units() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let mut sale = sale(&world.name, 3, 2);
    running.parts.store.create_sale(&sale).await.unwrap();
    sale.items[0].stock = 4;
    world.load(&running.parts.gate, &sale).await;
    let path = format!("/v1/sales/{}/orders", sale.id);
    for user in ["ada", "bob"] {
        let buyer = Buyer::of(&running, user);
        let answer = buyer.post(&path, &[("idempotency-key", "k")], r#"{"quantity":2}"#).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }
    until("the worker pauses the sale", LONG, async || {
        let gate = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
        (gate.state == SaleState::Paused && gate.waiting == 0).then_some(())
    })
    .await;
    let books = audit(&running.parts.gate, &running.parts.store, &sale.id).await.unwrap();
    assert!(!books.balances() && books.is_at_rest(), "{books:?}");
    assert_eq!((books.items[0].oversold(), books.items[0].missing()), (0, 1), "one real unit is missing");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_refuses_new_orders_and_nothing_else() {
    let mut world = World::new(Database::Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let server = private_redis(&mut world, folder.path()).await;
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 50, 1);
    world.open_sale(&front.parts, &sale).await;
    let buyers: Vec<_> = (0..20).map(|nth| Buyer::of(&front, &format!("user{nth}"))).collect();
    let mut first = Vec::new();
    for buyer in &buyers {
        first.push(buyer.buy(sale.id.as_str(), "k").await);
    }
    ask_redis::<()>(&server.url, "CONFIG SET maxmemory 1").await;
    let refused = Buyer::of(&front, "late").buy(sale.id.as_str(), "k").await;
    assert_eq!((refused.status, refused.code()), (503, "overloaded"), "{}", refused.text);
    for (buyer, first) in buyers.iter().zip(&first) {
        let again = buyer.buy(sale.id.as_str(), "k").await;
        assert_eq!(again.order_id(), first.order_id(), "a repeat gets its order: {}", again.text);
    }
    // Redis is still full: the worker takes leases, marks, settles, and drains the backlog.
    let worker = world.running_as(Role::Worker).await;
    assert_eq!(at_rest(&front, &sale).await.live_orders, 20);
    ask_redis::<()>(&server.url, "CONFIG SET maxmemory 1gb").await;
    let late = Buyer::of(&front, "late").buy(sale.id.as_str(), "k").await;
    assert_eq!(late.status, 202, "{}", late.text);
    worker.stop().await;
    front.stop().await;
    server.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_without_its_last_writes_sells_nothing_even_if_every_front_is_new() {
    let mut world = World::new(Database::Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let server = private_redis(&mut world, folder.path()).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    // Redis will come back with this copy, in which the sale has sold nothing.
    let (aof, before) = (folder.path().join("redis/appendonlydir"), folder.path().join("before"));
    copy(&aof, &before);
    for user in ["ada", "bob"] {
        assert_eq!(Buyer::of(&running, user).buy(sale.id.as_str(), "k").await.status, 202);
    }
    assert_eq!(at_rest(&running, &sale).await.live_orders, 2);
    running.stop().await;
    server.stop(Ending::AtOnce).await;
    std::fs::remove_dir_all(&aof).unwrap();
    copy(&before, &aof);
    let server = private_redis(&mut world, folder.path()).await;
    let running = world.running().await;
    // The sale freezes before the first click.
    until("the sale is frozen", LONG, async || {
        let held = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
        assert_eq!(held.items[0].left, 5, "Redis has lost two orders");
        (held.state == SaleState::Frozen).then_some(())
    })
    .await;
    let answer = Buyer::of(&running, "eve").buy(sale.id.as_str(), "k").await;
    assert_eq!((answer.status, answer.code()), (503, "sale_paused"), "{}", answer.text);
    let held = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!((held.items[0].left, held.state), (5, SaleState::Frozen));
    running.stop().await;
    server.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_redis_lost_still_holds() {
    let mut world = World::new(Database::Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let server = private_redis(&mut world, folder.path()).await;
    let running = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let (aof, before) = (folder.path().join("redis/appendonlydir"), folder.path().join("before"));
    copy(&aof, &before);
    running.control.pause(&sale.id, None, &ActRequest::by("test")).await.unwrap();
    running.stop().await;
    server.stop(Ending::AtOnce).await;
    std::fs::remove_dir_all(&aof).unwrap();
    copy(&before, &aof);
    let server = private_redis(&mut world, folder.path()).await;
    // An act must not take the next number itself: that would hide the missing writes.
    let parts = world.parts().await;
    let control = doorbuster::control::Control::new(parts.gate.clone(), parts.store.clone());
    let error = control.pause(&sale.id, None, &ActRequest::by("test")).await.expect_err("frozen").to_string();
    assert!(error.contains("frozen"), "{error}");
    let running = world.running_as(Role::Front).await;
    let answer = Buyer::of(&running, "eve").buy(sale.id.as_str(), "k").await;
    assert_eq!((answer.status, answer.code()), (503, "sale_paused"), "{}", answer.text);
    running.stop().await;
    server.stop(Ending::AtOnce).await;
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_redis_sells_nothing_until_its_books_are_compared() {
    let mut world = World::new(Database::Postgres).await;
    world.set("database.timeout_ms=500");
    let proxy = behind_proxy(&mut world, "database.url").await;
    let folder = tempfile::tempdir().unwrap();
    let redis = private_redis(&mut world, folder.path()).await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&world.parts().await, &sale).await;
    redis.stop(Ending::AtOnce).await;
    let redis = private_redis(&mut world, folder.path()).await;
    proxy.set(Weather::Down);
    let running = Running::start(&world.config(), Role::Front).await.expect("starts without a database");
    let ada = Buyer::of(&running, "ada");
    let refused = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!((refused.status, refused.code()), (503, "gate_unavailable"), "{}", refused.text);
    until("readiness says why", LONG, async || {
        let ready = request(running.operations, "GET", "/readyz", &[], b"").await;
        let why = ready.json["dependencies"]["redis"]["detail"].as_str().unwrap_or_default();
        (ready.status == 503 && why.contains("cannot be compared yet")).then_some(())
    })
    .await;
    proxy.set(Weather::Fair);
    until("the front is ready before the first click", LONG, async || {
        let ready = request(running.operations, "GET", "/readyz", &[], b"").await;
        (ready.json["dependencies"]["redis"]["up"] == true).then_some(())
    })
    .await;
    until("the sale sells", LONG, async || {
        Some(ada.buy(sale.id.as_str(), "k").await).filter(|answer| answer.status == 202)
    })
    .await;
    // From now on the front sells without a database.
    proxy.set(Weather::Down);
    let bob = Buyer::of(&running, "bob").buy(sale.id.as_str(), "k").await;
    assert_eq!(bob.status, 202, "{}", bob.text);
    running.stop().await;
    redis.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outboxes_of_all_sales_share_one_bound() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("gate.outbox_bound_in_all=100");
    let gate = world.parts().await.gate;
    let (one, other) = (sale(&format!("{}a", world.name), 500, 1), sale(&format!("{}b", world.name), 500, 1));
    world.load(&gate, &one).await;
    world.load(&gate, &other).await;
    let admit = async |sale: &doorbuster::domain::Sale, count: usize| {
        let mut accepted = 0;
        for nth in 0..count {
            let verdict = gate.admit(attempt(&sale.id, &format!("user{nth}"), None, 1)).await.unwrap();
            assert!(matches!(verdict, Verdict::Accepted(_) | Verdict::Overloaded), "{verdict:?}");
            accepted += usize::from(matches!(verdict, Verdict::Accepted(_)));
        }
        accepted
    };
    assert_eq!((admit(&one, 60).await, admit(&other, 60).await), (60, 40));
}
