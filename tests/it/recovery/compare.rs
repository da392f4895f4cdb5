//! Differences between gate and database are found, named and repaired; orders unknown to the gate are adopted.

use std::time::Duration;

use doorbuster::domain::{Act, ActRequest, OrderStatus, SaleState};
use doorbuster::gate::Versions;
use doorbuster::lease::LeaseOptions;
use doorbuster::process::{Role, Running};
use doorbuster::queue::OrderLog;
use doorbuster::recovery::{Compare, DifferenceKind, MOST_SUSPECTS, compare};
use doorbuster::settlement::Settler;

use crate::recovery::repair::{assert_none_failed, forget, left, lost_mid_sale, rebuild};
use crate::seams::queue::channel;
use crate::support::{
    Database, World, ask_redis, at_rest, attempt, buy, id, run, sale, servers, until, verdicts,
};

const LONG: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread")]
async fn an_order_known_only_from_a_message_is_adopted_once_it_has_its_row() {
    let (world, front, sale, _) = lost_mid_sale(9).await;
    let name = format!("{}.log", world.name);
    channel(&world).await.queue_delete(name.as_str().into(), Default::default()).await.unwrap();
    let (code, out, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
    assert!(code == 0 && out.contains("0 orders in flight"), "{out}{err}");
    // Four orders are only in the queue. The gate counts five units as left, but only one is.
    assert_eq!(left(&front.parts, &sale).await, 5);
    buy(&front, &sale, 30..31).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    until("all orders are adopted", LONG, async || (left(&front.parts, &sale).await == 0).then_some(()))
        .await;
    assert_eq!(at_rest(&front, &sale).await.live_orders, 9);
    assert_none_failed(&front, &sale).await;
    worker.stop().await;
    front.stop().await;
}

/// The holder of the lease may be about to end the order.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_adopted_under_its_users_lease() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let (sale, parts) = (sale(&world.name, 2, 1), &running.parts);
    world.open_sale(parts, &sale).await;
    let order = buy(&running, &sale, 0..1).await[0];
    at_rest(&running, &sale).await;
    forget(&world, &sale).await;
    parts.gate.load(&sale, &Versions { epoch: 2, ..Default::default() }).await.unwrap();
    let held = parts.leases.take(sale.id.as_str(), ["user0"], LeaseOptions::lasting(LONG)).await.unwrap();
    let guard = held.guard.expect("free");
    let settler = Settler { gate: &parts.gate, store: &parts.store, leases: &parts.leases };
    assert!(!settler.adopt(&sale.id, &id("user0"), order).await.unwrap());
    assert_eq!(left(parts, &sale).await, 2);
    guard.release().await.unwrap();
    until("it is adopted", LONG, async || {
        let _ = settler.adopt(&sale.id, &id("user0"), order).await;
        (left(parts, &sale).await == 1).then_some(())
    })
    .await;
    running.stop().await;
}

/// Makes each kind of difference that can be made by hand.
#[tokio::test(flavor = "multi_thread")]
async fn every_difference_is_named_and_repaired() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("sweep.every_ms=60000").set("maintenance.every_ms=60000");
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 20, 1);
    world.open_sale(&front.parts, &sale).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    let orders = buy(&front, &sale, 0..4).await;
    at_rest(&front, &sale).await;
    worker.stop().await;
    let key = |name: &str| format!("{}:{{{}}}:{name}", world.name, sale.id);
    let redis = async |command: String| {
        let _: redis::Value = ask_redis(&servers().redis, &command).await;
    };
    // Not held in the gate: the user's record is gone, and the unit is on sale.
    redis(format!("HDEL {} user0", key("users"))).await;
    redis(format!("HINCRBY {} unit 1", key("items"))).await;
    // Ended in its row, and still held in the gate.
    let parts = &front.parts;
    let lease = parts.leases.take(sale.id.as_str(), ["user1"], LeaseOptions::default()).await.unwrap();
    let change = doorbuster::store::Change {
        id: orders[1],
        act: Act::Cancel,
        asked: ActRequest::by("test"),
        fence: lease.guard.as_ref().expect("free").token(),
    };
    parts.store.change(&[change], &|| true).await.unwrap();
    let number = parts.gate.describe(&sale.id).await.unwrap().expect("loaded").number;
    parts.store.finish_returns(&sale.id, number, &[orders[1]]).await.unwrap();
    drop(lease);
    // Published, and then lost from queue and outbox. The log has it.
    let lost = buy(&front, &sale, 4..5).await;
    let name = format!("{}.orders", world.name);
    channel(&world).await.queue_purge(name.as_str().into(), Default::default()).await.unwrap();
    redis(format!("HDEL {} {}", key("outbox"), lost[0].uuid().simple())).await;
    // Known only to the gate.
    let leaked = attempt(&sale.id, "user5", Some("k"), 1);
    verdicts(&parts.gate, &sale.id, std::slice::from_ref(&leaked)).await;
    redis(format!("HDEL {} {}", key("outbox"), leaked.id.uuid().simple())).await;
    // In the outbox and nowhere else.
    let waiting = attempt(&sale.id, "user6", Some("k"), 1);
    verdicts(&parts.gate, &sale.id, std::slice::from_ref(&waiting)).await;

    let log = OrderLog::open(world.config().queue());
    let compare_older_than = async |older: u64| {
        let older_than = Duration::from_secs(older);
        let (gate, store) = (&parts.gate, &parts.store);
        let how =
            Compare { gate, store, log: Some(&log), older_than, most: MOST_SUSPECTS, progress: &|_, _| {} };
        (compare(Compare { most: 1, ..how }, &sale.id).await.unwrap(), compare(how, &sale.id).await.unwrap())
    };
    assert!(compare_older_than(3_600).await.1.differences.is_empty(), "young orders are left alone");
    let (cut_short, found) = compare_older_than(0).await;
    assert!(cut_short.is_cut_short && !cut_short.differences.is_empty() && !cut_short.balances());
    assert!(!found.is_cut_short);
    let kinds: Vec<_> = found.differences.iter().map(|differs| (differs.why, differs.order_id)).collect();
    let expected = [
        (DifferenceKind::Lost, lost[0]),
        (DifferenceKind::Leaked, leaked.id),
        (DifferenceKind::Waiting, waiting.id),
        (DifferenceKind::Unreturned, orders[1]),
        (DifferenceKind::UnknownToGate, orders[0]),
    ];
    assert_eq!(kinds, expected);
    let audit = ["audit", "--sale", sale.id.as_str(), "--older-than", "0"];
    let (code, out, err) = run(Some(&world), &audit).await;
    assert!(code == 4 && out.contains("unknown_to_gate") && out.contains("leaked"), "{out}{err}");
    let repair = [&audit[..], &["--repair", "--yes"]].concat();
    let (code, out, err) = run(Some(&world), &repair).await;
    assert!(out.matches("repaired: ").count() == 5, "{code} {out}{err}");
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    let books = at_rest(&front, &sale).await;
    assert_eq!((books.live_orders, left(parts, &sale).await), (5, 15));
    let row = parts.store.order(leaked.id).await.unwrap().expect("a row in a final state");
    assert_eq!(row.status, OrderStatus::Expired);
    assert!(compare_older_than(0).await.1.balances());
    // Repair is idempotent.
    let (code, out, err) = run(Some(&world), &repair).await;
    assert!(code == 0 && !out.contains("repaired"), "{out}{err}");
    worker.stop().await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_with_too_many_or_too_few_units_pauses_the_sale_and_is_repaired() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("audit.every_s=1").set("audit.pause_sale=true").set("maintenance.every_ms=100");
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    for wrong in [3, -2] {
        let command = format!("HINCRBY {}:{{{}}}:items unit {wrong}", world.name, sale.id);
        let _: i64 = ask_redis(&servers().redis, &command).await;
        until("the sale is paused", LONG, async || {
            let state = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").state;
            (state == SaleState::Paused).then_some(())
        })
        .await;
        let (code, out, err) = run(Some(&world), &["audit", "--all", "--repair", "--yes"]).await;
        assert!(code == 0 && out.contains("7 left now"), "{out}{err}");
        assert_eq!(left(&running.parts, &sale).await, 7);
        running.control.resume(&sale.id, &ActRequest::by("test")).await.unwrap();
    }
    let acts = running.parts.store.acts(&sale.id, 100).await.unwrap();
    assert!(acts.iter().any(|act| act.kind == "pause" && act.by == "audit"), "{acts:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_restock_is_not_a_leak() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=60000");
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&front.parts, &sale).await;
    let request = ActRequest::by("ada");
    front.parts.store.begin_restock(&sale.id, &id("unit"), 3, &request).await.unwrap().unwrap();
    let repair = ["audit", "--sale", sale.id.as_str(), "--repair", "--yes"];
    let (_, out, err) = run(Some(&world), &repair).await;
    assert!(!out.contains("repaired"), "{out}{err}");
    assert_eq!(left(&front.parts, &sale).await, 5);
    front.control.finish_acts().await.unwrap();
    assert_eq!(left(&front.parts, &sale).await, 8);
    assert!(at_rest(&front, &sale).await.balances());
    front.stop().await;
}

/// A worker died between its ack and the settlement, and the gate was rebuilt without the order.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_no_worker_adopted_is_found_and_a_live_row_wins_over_an_ended_gate_entry() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let orders = buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    rebuild(&world, &running.parts).run(&sale.id, &ActRequest::by("test"), &|_, _| {}).await.unwrap();
    assert_eq!(left(&running.parts, &sale).await, 3);
    let key = |name: &str| format!("{}:{{{}}}:{name}", world.name, sale.id);
    let _: i64 = ask_redis(&servers().redis, &format!("HDEL {} user0", key("users"))).await;
    let _: i64 = ask_redis(&servers().redis, &format!("HINCRBY {} unit 1", key("items"))).await;
    until("the order is adopted", LONG, async || (left(&running.parts, &sale).await == 3).then_some(()))
        .await;
    // The gate has the order as ended, as it does after the database was restored.
    let settlement = doorbuster::gate::Settlement {
        id: orders[1],
        user: id("user1"),
        outcome: doorbuster::gate::Outcome::Ended,
    };
    running.parts.gate.settle(&sale.id, &[settlement]).await.unwrap();
    assert_eq!(left(&running.parts, &sale).await, 4);
    let repair = ["audit", "--sale", sale.id.as_str(), "--repair", "--yes", "--older-than", "0"];
    let (code, out, err) = run(Some(&world), &repair).await;
    assert!(code == 0 && out.contains("the gate holds it"), "{out}{err}");
    assert_eq!(left(&running.parts, &sale).await, 3);
    at_rest(&running, &sale).await;
    running.stop().await;
}
