//! What was committed in the last moment, what the log no longer has, and a database that is restored twice: nothing is
//! declared up to date that is not, and no order that may be good ends without a person's decision.

use std::process::Stdio;
use std::time::Duration;

use doorbuster::domain::{Act, ActRequest, OrderId, OrderStatus, Sale};
use doorbuster::orders::Orders;
use doorbuster::process::Running;
use doorbuster::queue::OrderLog;
use tokio::process::{Child, Command};

use super::log_reach::delete_log;
use super::repair::{act, forget};
use crate::support::{
    Backup, Buyer, Database, World, ask_redis, at_rest, attempt, buy, configure, everything_is_witnessed,
    run, sale, servers, until, verdicts,
};

const LONG: Duration = Duration::from_secs(60);

/// A front and a worker, and a sale of so many units whose orders wait for payment.
async fn running_sale(world: &World, stock: i64) -> (Running, Sale) {
    let running = world.running().await;
    let mut sale = sale(&world.name, stock, 1);
    sale.terms.pay_within_s = Some(3_600);
    world.open_sale(&running.parts, &sale).await;
    (running, sale)
}

async fn status(running: &Running, order: OrderId) -> Option<OrderStatus> {
    running.parts.store.order(order).await.unwrap().map(|row| row.status)
}

async fn until_behind(running: &Running) {
    until("the loss of the database is noticed", LONG, async || running.parts.store.behind()).await;
}

/// Two orders a second.
fn slow_replay(world: &World) -> Child {
    let mut replay = Command::new(env!("CARGO_BIN_EXE_doorbuster"));
    configure(&mut replay, world);
    replay.args(["replay", "run", "log", "--rate", "2", "--yes"]).kill_on_drop(true);
    replay.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Its exit code, and what it said.
async fn end_of(replay: Child) -> (Option<i32>, String) {
    let ended = tokio::time::timeout(LONG, replay.wait_with_output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    (ended.status.code(), said)
}

/// The log is there again, after it was deleted.
async fn until_log_is_back(world: &World) {
    let log = OrderLog::open(world.config().queue());
    until("the log is there again", LONG, async || log.head().await.ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_was_sold_again_stays_with_its_second_buyer_though_the_log_lacks_the_first_ones_end() {
    let mut world = World::new(Database::Postgres).await;
    world.set("worker.hold_ms=1000");
    let (running, sale) = running_sale(&world, 2).await;
    let first = buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    act(&running.parts, &sale, first[1], Act::Pay).await;
    everything_is_witnessed(&running, &sale).await;
    let database = Backup::of(&world);
    database.make().await;
    // Nothing writes the log any more.
    running.stop().await;
    world.set("maintenance.every_ms=60000");
    let running = Running::start(&world.config(), doorbuster::process::Role::Both).await.unwrap();
    running.publisher_is_up(LONG).await.unwrap();
    act(&running.parts, &sale, first[0], Act::Cancel).await;
    act(&running.parts, &sale, first[1], Act::Refund).await;
    let second = buy(&running, &sale, 2..4).await;
    at_rest(&running, &sale).await;
    assert!(!running.parts.store.unlogged(9).await.unwrap().ids.is_empty());

    database.restore().await;
    until_behind(&running).await;
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 0 && out.contains("is up to date now"), "{code} {out}{err}");
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.live_orders, books.items[0].left), (2, 0));
    for (order, wanted) in [
        (first[0], OrderStatus::Cancelled),
        (first[1], OrderStatus::Refunded),
        (second[0], OrderStatus::Confirmed),
        (second[1], OrderStatus::Confirmed),
    ] {
        assert_eq!(status(&running, order).await, Some(wanted));
    }
    let (code, out, err) =
        run(Some(&world), &["order", "show", sale.id.as_str(), &first[0].to_string()]).await;
    assert!(code == 0 && out.contains("the gate had its units back"), "{out}{err}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_had_ended_before_the_backup_is_not_ended_again_though_the_log_lacks_its_end() {
    let mut world = World::new(Database::Postgres).await;
    // Nothing writes the log but the fronts, which write what they accept.
    world.set("worker.hold_ms=1000").set("maintenance.every_ms=60000");
    let front = world.running_as(doorbuster::process::Role::Front).await;
    let mut sale = sale(&world.name, 4, 1);
    sale.terms.pay_within_s = Some(1);
    world.open_sale(&front.parts, &sale).await;
    let orders = buy(&front, &sale, 0..3).await;
    // Cancelled before a worker has written its row, so the row has the same version as that of a live order.
    act(&front.parts, &sale, orders[0], Act::Cancel).await;
    front.stop().await;
    let running = Running::start(&world.config(), doorbuster::process::Role::Both).await.unwrap();
    running.publisher_is_up(LONG).await.unwrap();
    at_rest(&running, &sale).await;
    let parts = &running.parts;
    let changes = Orders::new(parts.gate.clone(), parts.store.clone(), parts.leases.clone());
    let by = ActRequest::by("deadline");
    until("its time to pay has passed", LONG, async || {
        changes.act(&sale.id, orders[1], Act::Expire, &by).await.ok()
    })
    .await;
    let database = Backup::of(&world);
    database.make().await;
    buy(&running, &sale, 3..5).await;
    at_rest(&running, &sale).await;

    database.restore().await;
    until_behind(&running).await;
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 0 && out.contains("is up to date now"), "{code} {out}{err}");
    for (order, changes) in [(orders[0], 1), (orders[1], 1), (orders[2], 0)] {
        let history = running.parts.store.history(order).await.unwrap();
        assert_eq!(history.len(), changes, "{history:?}");
    }
    assert_eq!(at_rest(&running, &sale).await.live_orders, 3);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_began_shortly_before_the_backup_is_enough() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100").set("worker.hold_ms=1000");
    let (running, sale) = running_sale(&world, 9).await;
    buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    delete_log(&world).await;
    buy(&running, &sale, 2..3).await;
    until_log_is_back(&world).await;
    everything_is_witnessed(&running, &sale).await;
    // The position in the log is written each second.
    let log = OrderLog::open(world.config().queue());
    until("the database has a position in the new log", LONG, async || {
        let (position, head) = (running.parts.store.replay_from().await.ok()??, log.head().await.ok()?.at?);
        (position > head).then_some(())
    })
    .await;
    let database = Backup::of(&world);
    database.make().await;
    let lost = buy(&running, &sale, 3..5).await;
    at_rest(&running, &sale).await;
    database.restore().await;
    until_behind(&running).await;
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 0 && out.contains("is up to date now"), "{code} {out}{err}");
    assert!(!format!("{out}{err}").contains("the log begins at"), "{out}{err}");
    assert_eq!(status(&running, lost[0]).await, Some(OrderStatus::Confirmed));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_stock_that_only_the_gate_still_has_is_restored_with_its_orders() {
    let mut world = World::new(Database::Postgres).await;
    world.set("worker.hold_ms=1000").set("maintenance.every_ms=60000");
    let (running, sale) = running_sale(&world, 2).await;
    buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    let database = Backup::of(&world);
    database.make().await;
    let operator = Buyer::operator(&running, doorbuster::front::Role::Admin);
    let path = format!("/v1/admin/sales/{}:restock", sale.id);
    let restock = async |units: i64| {
        let body = serde_json::json!({ "sku": sale.items[0].sku, "units": units }).to_string();
        let answer = operator.post(&path, &[("idempotency-key", &format!("by{units}"))], &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    };
    restock(3).await;
    buy(&running, &sale, 2..4).await;
    at_rest(&running, &sale).await;

    database.restore().await;
    until_behind(&running).await;
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 0 && out.contains("is up to date now"), "{code} {out}{err}");
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.live_orders, books.items[0].stock, books.items[0].left), (4, 5, 1));
    // The same request again, by an operator who has not heard the answer: it was done.
    restock(3).await;
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.items[0].stock, books.items[0].left), (5, 1));
    restock(-1).await;
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.items[0].stock, books.items[0].left), (4, 0));
    running.stop().await;
}

/// A database that has lost all orders but two: these.
async fn with_lost_orders(world: &World, database: &Backup, count: u32) -> (Running, Sale, Vec<OrderId>) {
    let (running, sale) = running_sale(world, 30).await;
    buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    everything_is_witnessed(&running, &sale).await;
    database.make().await;
    let lost = buy(&running, &sale, 2..2 + count).await;
    at_rest(&running, &sale).await;
    act(&running.parts, &sale, lost[0], Act::Pay).await;
    everything_is_witnessed(&running, &sale).await;
    database.restore().await;
    until_behind(&running).await;
    (running, sale, lost)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_restored_during_a_replay_stays_behind() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100").set("worker.hold_ms=1000");
    let database = Backup::of(&world);
    let (running, sale, lost) = with_lost_orders(&world, &database, 8).await;
    let replay = slow_replay(&world);
    until("the replay has restored an order", LONG, async || status(&running, lost[0]).await).await;
    database.restore().await;
    let (code, said) = end_of(replay).await;
    assert!(code == Some(1) && said.contains("restored again"), "{said}");
    assert!(running.parts.store.behind().is_some());
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 0 && out.contains("is up to date now"), "{code} {out}{err}");
    assert_eq!(status(&running, lost[0]).await, Some(OrderStatus::Paid));
    assert_eq!(at_rest(&running, &sale).await.live_orders, 10);
    running.stop().await;
}

/// As after a failover in the middle of a replay: the new primary knows the replay, but lacks the last of what it wrote.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_loses_a_part_of_a_replay_stays_behind() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100").set("worker.hold_ms=1000");
    let database = Backup::as_dump_of(&world);
    let (running, sale, lost) = with_lost_orders(&world, &database, 18).await;
    let restored = async || {
        let rows = futures_util::future::join_all(lost.iter().map(|order| status(&running, *order))).await;
        rows.iter().flatten().count()
    };
    let replay = slow_replay(&world);
    until("the replay has restored an order", LONG, async || (restored().await > 0).then_some(())).await;
    database.make().await;
    let copied = restored().await;
    until("the replay has restored more", LONG, async || (restored().await > copied).then_some(())).await;
    database.restore().await;
    let (code, said) = end_of(replay).await;
    assert!(code == Some(1) && said.contains("restored again"), "{code:?} {said}");
    assert!(running.parts.store.behind().is_some());
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 0 && out.contains("is up to date now"), "{code} {out}{err}");
    assert_eq!((restored().await, at_rest(&running, &sale).await.live_orders), (lost.len(), 20));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_neither_log_nor_database_knows_keeps_the_database_behind() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100").set("worker.hold_ms=1000");
    world.parts().await;
    // Older than the first sale.
    let database = Backup::of(&world);
    database.make().await;
    let (running, sale) = running_sale(&world, 30).await;
    let orders = buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    everything_is_witnessed(&running, &sale).await;
    database.restore().await;
    delete_log(&world).await;
    until_log_is_back(&world).await;
    until_behind(&running).await;
    // What a buyer was answered may not be denied, even by a database that does not know the sale.
    forget(&world, &sale).await;
    let user = Buyer::of(&running, "user0");
    for path in [
        format!("/v1/sales/{}", sale.id),
        format!("/v1/sales/{}/orders/mine", sale.id),
        format!("/v1/sales/{}/orders/{}", sale.id, orders[0]),
    ] {
        until("the front's view of the sale is renewed", LONG, async || {
            let answer = user.get(&path).await;
            assert_ne!(answer.status, 404, "{path}: {}", answer.text);
            (answer.status == 503).then_some(())
        })
        .await;
    }
    let operator = Buyer::operator(&running, doorbuster::front::Role::Viewer);
    for path in ["", "/audit"] {
        let answer = operator.get(&format!("/v1/admin/sales/{}{path}", sale.id)).await;
        assert_eq!(answer.status, 503, "{path}: {}", answer.text);
    }
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 3 && out.contains("neither the log nor the database knows"), "{code} {out}{err}");
    assert!(running.parts.store.behind().is_some());
    // A person decides, about everything.
    let accept = ["replay", "run", "log", "--accept-loss", "--yes"];
    let (code, _, err) = run(Some(&world), &[&accept[..], &["--sale", sale.id.as_str()]].concat()).await;
    assert!(code == 2 && err.contains("whole log"), "{code} {err}");
    let (code, out, err) = run(Some(&world), &accept).await;
    assert!(code == 3 && out.contains("accepted as lost"), "{code} {out}{err}");
    until("everything goes on", LONG, async || running.parts.store.behind().is_none().then_some(())).await;
    let (_, listed, _) = run(Some(&world), &["replay", "list", "--output", "json"]).await;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["replays"][0]["report"]["loss_accepted"], true, "{listed}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_ends_no_order_that_the_log_could_prove_to_be_good() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100");
    let (running, sale) = running_sale(&world, 30).await;
    buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    // Held by the gate, and without a row or an entry in the outbox: as good orders are once the database was restored
    // and a loss was accepted.
    let held = attempt(&sale.id, "user5", Some("k"), 1);
    verdicts(&running.parts.gate, &sale.id, std::slice::from_ref(&held)).await;
    let outbox = format!("HDEL {}:{{{}}}:outbox {}", world.name, sale.id, held.id.uuid().simple());
    let _: i64 = ask_redis(&servers().redis, &outbox).await;
    // The log begins after the sale.
    let backup = Backup::of(&world);
    backup.execute_in_place("UPDATE sales SET created_at_ms = created_at_ms - 3600000").await;
    delete_log(&world).await;
    until_log_is_back(&world).await;

    let audit = ["audit", "--sale", sale.id.as_str(), "--older-than", "0"];
    let (code, out, err) = run(Some(&world), &audit).await;
    assert!(code == 4 && out.contains(&format!("unproven        {}", held.id)), "{code} {out}{err}");
    let repair = [&audit[..], &["--repair", "--yes"]].concat();
    let (code, out, err) = run(Some(&world), &repair).await;
    assert!(code == 4 && out.contains("left: ") && !out.contains("repaired"), "{code} {out}{err}");
    assert_eq!(status(&running, held.id).await, None);
    let accept = [&repair[..], &["--accept-loss"]].concat();
    let (code, out, err) = run(Some(&world), &accept).await;
    assert!(code == 0 && out.contains("recorded as expired"), "{code} {out}{err}");
    assert_eq!(status(&running, held.id).await, Some(OrderStatus::Expired));
    assert_eq!(at_rest(&running, &sale).await.items[0].left, 28);
    running.stop().await;
}
