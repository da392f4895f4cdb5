//! A gate that lost some or all of its writes is rebuilt, while orders wait, fail, end and get their rows.

use std::time::Duration;

use doorbuster::domain::{Act, ActRequest, OrderId, OrderStatus, Sale, SaleState, Verdict};
use doorbuster::orders::Orders;
use doorbuster::process::{Parts, Role, Running};
use doorbuster::queue::{DeadLetters, OrderLog};
use doorbuster::recovery::{Rebuild, RebuildError};
use doorbuster::settlement::Settler;
use tokio_util::sync::CancellationToken;

use crate::support::{
    Buyer, Database, World, ask_redis, at_rest, attempt, buy, id, run, run_with, sale, servers, until,
    verdicts,
};

const LONG: Duration = Duration::from_secs(40);

pub(crate) fn rebuild(world: &World, parts: &Parts) -> Rebuild {
    Rebuild {
        gate: parts.gate.clone(),
        store: parts.store.clone(),
        leases: parts.leases.clone(),
        dead_letters: DeadLetters::open(world.config().queue()),
        log: OrderLog::open(world.config().queue()),
        unattended: false,
        stop: CancellationToken::new(),
    }
}

/// Deletes the sale from Redis.
pub(crate) async fn forget(world: &World, sale: &Sale) {
    for key in ["sale", "items", "stock", "users", "outbox", "age", "due", "rates"] {
        let command = format!("DEL {}:{{{}}}:{key}", world.name, sale.id);
        let _: i64 = ask_redis(&servers().redis, &command).await;
    }
}

pub(crate) async fn act(parts: &Parts, sale: &Sale, order: OrderId, act: Act) {
    let orders = Orders::new(parts.gate.clone(), parts.store.clone(), parts.leases.clone());
    orders.act(&sale.id, order, act, &ActRequest::by("operator ada")).await.unwrap();
}

/// Units that the gate can still sell.
pub(crate) async fn left(parts: &Parts, sale: &Sale) -> i64 {
    parts.gate.describe(&sale.id).await.unwrap().expect("loaded").items[0].left
}

pub(crate) async fn assert_none_failed(running: &Running, sale: &Sale) {
    for row in running.parts.store.orders_after(&sale.id, None, 1_000).await.unwrap() {
        assert_ne!(row.status, OrderStatus::Failed, "no accepted order fails: {row:?}");
    }
}

/// A front, orders with rows in every state, a backlog in the queue, and a sale that Redis has lost.
pub(crate) async fn lost_mid_sale(stock: i64) -> (World, Running, Sale, Vec<OrderId>) {
    let mut world = World::new(Database::Sqlite).await;
    world.set("sweep.overtaken_after_ms=1000").set("sweep.every_ms=200").set("maintenance.every_ms=100");
    // The tests rebuild.
    world.set("gate.rebuild=manual");
    let front = world.running_as(Role::Front).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    let sale = sale(&world.name, stock, 1);
    world.open_sale(&front.parts, &sale).await;
    let mut orders = buy(&front, &sale, 0..5).await;
    at_rest(&front, &sale).await;
    act(&front.parts, &sale, orders[0], Act::Pay).await;
    act(&front.parts, &sale, orders[1], Act::Cancel).await;
    at_rest(&front, &sale).await;
    worker.stop().await;
    orders.extend(buy(&front, &sale, 5..9).await);
    forget(&world, &sale).await;
    let refused = Buyer::of(&front, "eve").buy(sale.id.as_str(), "k").await;
    assert_eq!((refused.status, refused.code()), (503, "gate_unavailable"), "{}", refused.text);
    (world, front, sale, orders)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_redis_lost_during_a_backlog_is_rebuilt_and_sells_nothing_twice() {
    let (world, front, sale, orders) = lost_mid_sale(12).await;
    let (code, out, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str()]).await;
    assert!(code == 2 && err.contains("--yes"), "{out}{err}");
    let (code, out, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
    assert!(code == 0 && out.contains("is open again") && out.contains("4 orders in flight"), "{out}{err}");
    // Nine units were sold, and one of those orders has ended.
    assert_eq!(left(&front.parts, &sale).await, 4);
    for (user, order) in orders.iter().enumerate() {
        let again = Buyer::of(&front, &format!("user{user}")).buy(sale.id.as_str(), "k").await;
        assert_eq!(again.order_id(), order.to_string(), "the same click: {}", again.text);
    }
    let other = Buyer::of(&front, "user7").buy(sale.id.as_str(), "another").await;
    assert_eq!((other.status, other.code()), (409, "already_ordered"), "{}", other.text);
    buy(&front, &sale, 20..24).await;
    let late = Buyer::of(&front, "late").buy(sale.id.as_str(), "k").await;
    assert_eq!((late.status, late.code()), (409, "sold_out"), "{}", late.text);
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    assert_eq!(at_rest(&front, &sale).await.live_orders, 12);
    assert_none_failed(&front, &sale).await;
    let (_, out, _) = run(Some(&world), &["sale", "acts", sale.id.as_str()]).await;
    assert!(out.contains("rebuild"), "{out}");
    worker.stop().await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_dies_at_any_step_can_be_repeated() {
    for point in doorbuster::fault::REBUILD_POINTS {
        let (world, front, sale, _) = lost_mid_sale(12).await;
        let command = ["rebuild", "--sale", sale.id.as_str(), "--yes"];
        let (code, out, err) = run_with(Some(&world), &command, Some(&format!("{point}=abort"))).await;
        assert!(code != 0 && err.contains(point), "{point}: {out}{err}");
        let paused = Buyer::of(&front, "eve").buy(sale.id.as_str(), "k").await;
        assert_eq!(paused.status, 503, "{point}: {}", paused.text);
        // The dead rebuild's lease expires.
        until("the sale is rebuilt", LONG, async || (run(Some(&world), &command).await.0 == 0).then_some(()))
            .await;
        assert_eq!(left(&front.parts, &sale).await, 4, "{point}");
        let staged = format!("KEYS {}:{{{}}}:staged:*", world.name, sale.id);
        let abandoned: Vec<String> = ask_redis(&servers().redis, &staged).await;
        assert_eq!(abandoned, [] as [&str; 0], "{point}");
        let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
        assert_eq!(at_rest(&front, &sale).await.live_orders, 8, "{point}");
        assert_none_failed(&front, &sale).await;
        worker.stop().await;
        front.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_persisted_between_the_two_readings_is_counted_once() {
    let (world, front, sale, orders) = lost_mid_sale(12).await;
    let rebuild = rebuild(&world, &front.parts);
    let begun = rebuild.begin(&sale.id).await.unwrap();
    let gathered = rebuild.gather(&begun).await.unwrap();
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    until("the backlog has its rows", LONG, async || {
        front.parts.store.order(orders[8]).await.unwrap().map(|_| ())
    })
    .await;
    // One of these orders also ends before the load.
    act(&front.parts, &sale, orders[8], Act::Cancel).await;
    let loaded = rebuild.load(&begun, &gathered, &|_, _| {}).await.unwrap();
    assert_eq!((loaded.users, loaded.in_flight), (9, 0));
    // A frozen gate cannot take back the unit of an order that ends now. It does so once it sells again.
    act(&front.parts, &sale, orders[7], Act::Cancel).await;
    rebuild.finish(&begun, &gathered, loaded, &|_, _| {}).await.unwrap();
    at_rest(&front, &sale).await;
    assert_eq!(left(&front.parts, &sale).await, 6);
    assert_none_failed(&front, &sale).await;
    worker.stop().await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversold_gate_has_a_negative_count_until_units_come_back() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 2, 1);
    world.open_sale(&running.parts, &sale).await;
    let orders = buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    forget(&world, &sale).await;
    // Simulates a gate that was loaded without these orders and has already sold a unit.
    let parts = &running.parts;
    let second = doorbuster::gate::Versions { epoch: 2, ..Default::default() };
    parts.gate.load(&sale, &second).await.unwrap();
    parts.gate.move_sale(&sale.id, SaleState::Open, &[SaleState::Draft]).await.unwrap();
    let sold = verdicts(&parts.gate, &sale.id, &[attempt(&sale.id, "eve", Some("k"), 1)]).await;
    assert!(matches!(sold[0], Verdict::Accepted(_)), "{sold:?}");
    for (user, order) in ["user0", "user1"].into_iter().zip(&orders) {
        let user = id(user);
        let settler = Settler { gate: &parts.gate, store: &parts.store, leases: &parts.leases };
        let adopt = async || settler.adopt(&sale.id, &user, *order).await;
        assert!(adopt().await.unwrap());
        assert!(!adopt().await.unwrap(), "it is adopted once");
    }
    assert_eq!(left(parts, &sale).await, -1);
    let late = Buyer::of(&running, "late").buy(sale.id.as_str(), "k").await;
    assert_eq!(late.code(), "sold_out", "{}", late.text);
    // The database refuses the order that is one too many. Then zero units are left, not minus one.
    let phantom = sold.into_iter().next().expect("one");
    let Verdict::Accepted(phantom) = phantom else { panic!("{phantom:?}") };
    running.parts.publisher.clone().expect("up").publish(&[phantom]).await.unwrap();
    until("the order is refused", LONG, async || (left(parts, &sale).await == 0).then_some(())).await;
    let row = parts.store.sale(&sale.id).await.unwrap().expect("a row");
    until("the sale's row is paused, too", LONG, async || {
        let row = parts.store.sale(&sale.id).await.unwrap()?;
        (row.state == SaleState::Paused).then_some(())
    })
    .await;
    assert_eq!(row.items[0].sold, 2);
    act(parts, &sale, orders[0], Act::Cancel).await;
    assert_eq!(left(parts, &sale).await, 1, "its unit is on sale again");
    running.stop().await;
}

/// A front looks for frozen sales and then waits for the lease of the rebuild that is under way.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_was_just_rebuilt_is_not_rebuilt_again_by_itself() {
    let (world, front, sale, _) = lost_mid_sale(12).await;
    let by_itself = Rebuild { unattended: true, ..rebuild(&world, &front.parts) };
    let request = ActRequest::by("schedule");
    by_itself.run(&sale.id, &request, &|_, _| {}).await.unwrap();
    let number = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").number;
    let again = by_itself.run(&sale.id, &request, &|_, _| {}).await;
    assert!(matches!(again, Err(RebuildError::NotNeeded(_))), "{again:?}");
    let gate = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!((gate.state, gate.number), (SaleState::Open, number));
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_older_of_two_rebuilds_loads_nothing() {
    let (world, front, sale, _) = lost_mid_sale(12).await;
    let rebuild = rebuild(&world, &front.parts);
    let first = rebuild.begin(&sale.id).await.unwrap();
    let error = rebuild.begin(&sale.id).await.err().expect("one at a time");
    assert!(matches!(error, RebuildError::UnderWay(_)), "{error}");
    let gathered = rebuild.gather(&first).await.unwrap();
    // Simulates that the lease of this rebuild ended and another rebuild began.
    let row = front.parts.store.sale(&sale.id).await.unwrap().expect("a row");
    front.parts.gate.begin_rebuild(&row.sale, 7).await.unwrap();
    let error = rebuild.load(&first, &gathered, &|_, _| {}).await.expect_err("the other rebuild's epoch");
    assert!(error.to_string().contains("another rebuild"), "{error}");
    drop(first);
    until("the lease is free", LONG, async || {
        rebuild.run(&sale.id, &ActRequest::by("operator ada"), &|_, _| {}).await.ok()
    })
    .await;
    let number = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").number;
    // Higher than 8 if a slow server ended a rebuild, or if its epoch was in the log before the log was read.
    assert!(number.epoch >= 8, "{number}");
    assert_eq!(left(&front.parts, &sale).await, 4);
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_neither_loses_nor_repeats_an_unfinished_restock() {
    for units in [-2, 3] {
        let (world, front, sale, _) = lost_mid_sale(12).await;
        front
            .parts
            .store
            .begin_restock(&sale.id, &id("unit"), units, &ActRequest::by("ada"))
            .await
            .unwrap()
            .unwrap();
        let rebuild = rebuild(&world, &front.parts);
        rebuild.run(&sale.id, &ActRequest::by("operator ada"), &|_, _| {}).await.unwrap();
        // The next process finishes the restock: here, maintenance.
        until("the restock is finished", LONG, async || {
            front.parts.store.pending_restocks(&sale.id).await.unwrap().is_empty().then_some(())
        })
        .await;
        assert_eq!(left(&front.parts, &sale).await, 4 + units);
        let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
        let books = at_rest(&front, &sale).await;
        assert_eq!(books.items[0].stock, 12 + units);
        worker.stop().await;
        front.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_older_than_the_log_must_catch_up_before_a_rebuild() {
    let (world, front, sale, orders) = lost_mid_sale(12).await;
    until("the log is complete", LONG, async || {
        front.parts.store.unlogged(1).await.unwrap().ids.is_empty().then_some(())
    })
    .await;
    use sqlx::{Connection as _, Executor as _};
    let mut database = sqlx::SqliteConnection::connect(&world.config().database.url).await.unwrap();
    let outdated = format!(
        "UPDATE orders SET status = 'confirmed', version = 1 WHERE hex(id) = '{}'",
        orders[0].uuid().simple().to_string().to_uppercase()
    );
    let changed = database.execute(sqlx::AssertSqlSafe(outdated)).await.unwrap();
    assert_eq!(changed.rows_affected(), 1);
    let (code, _, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
    assert!(code == 1 && err.contains("replay run log"), "{err}");
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 0 && out.contains("1 brought up to date"), "{out}{err}");
    let (code, out, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
    assert_eq!(code, 0, "{out}{err}");
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_counts_a_parked_order_and_keeps_it_parked() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("queue.delivery_limit=1").set("sweep.overtaken_after_ms=60000");
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&front.parts, &sale).await;
    let orders = buy(&front, &sale, 0..1).await;
    // Returned more often than the broker allows, the message becomes a dead letter.
    for _ in 0..3 {
        let mut consumer = doorbuster::queue::Consumer::new(world.config().queue(), 1);
        let timeout = Duration::from_secs(2);
        consumer.next_batch_within(1, Duration::from_millis(20), timeout).await;
        consumer.close().await;
    }
    let dead_letters = DeadLetters::open(world.config().queue());
    until("the order is a dead letter", LONG, async || dead_letters.list(10).await.unwrap().pop()).await;
    forget(&world, &sale).await;
    let rebuild = rebuild(&world, &front.parts);
    let rebuilt = rebuild.run(&sale.id, &ActRequest::by("operator ada"), &|_, _| {}).await.unwrap();
    assert_eq!((rebuilt.in_flight, left(&front.parts, &sale).await), (1, 2));
    let ticket = front.parts.gate.ticket(&sale.id, orders[0]).await.unwrap().expect("in flight");
    assert!(ticket.parked);
    let (code, out, err) = run(Some(&world), &["replay", "run", "dead-letters", "--yes"]).await;
    assert!(code == 0 && out.contains("1 inserted"), "{out}{err}");
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    assert_eq!(at_rest(&front, &sale).await.live_orders, 1);
    worker.stop().await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_cannot_read_the_log_does_not_freeze_the_sale() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let no_broker = ["--set", "queue.url=amqp://127.0.0.1:1", "--set", "queue.timeout_ms=500"];
    let command = [&no_broker[..], &["rebuild", "--sale", sale.id.as_str(), "--yes"]].concat();
    let (code, _, err) = run(Some(&world), &command).await;
    assert!(code == 1 && err.contains("the order log cannot be read"), "{err}");
    buy(&running, &sale, 0..1).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_set_back_during_its_rebuild_stays_frozen() {
    let (world, front, sale, _) = lost_mid_sale(12).await;
    let rebuild = rebuild(&world, &front.parts);
    let begun = rebuild.begin(&sale.id).await.unwrap();
    let gathered = rebuild.gather(&begun).await.unwrap();
    let loaded = rebuild.load(&begun, &gathered, &|_, _| {}).await.unwrap();
    // Redis goes back to before the load. The sums stay the same.
    let key = format!("{}:{{{}}}:sale", world.name, sale.id);
    let _: i64 = ask_redis(&servers().redis, &format!("HSET {key} seq 0")).await;
    let error = rebuild
        .finish(&begun, &gathered, loaded, &|_, _| {})
        .await
        .expect_err("not the gate that was loaded");
    assert!(matches!(error, RebuildError::Moved), "{error}");
    let state = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").state;
    assert_eq!(state, SaleState::Frozen);
    let resumed = front.control.resume(&sale.id, &ActRequest::by("test")).await;
    assert!(resumed.is_err(), "an operator cannot resume it either: {resumed:?}");
    drop(begun);
    until("the sale is rebuilt", LONG, async || {
        rebuild.run(&sale.id, &ActRequest::by("test"), &|_, _| {}).await.ok()
    })
    .await;
    assert_eq!(left(&front.parts, &sale).await, 4);
    front.stop().await;
}
