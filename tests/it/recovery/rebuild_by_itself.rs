//! Fronts rebuild a gate that lost writes, and one that lost the sale if the configuration allows it.

use std::time::Duration;

use doorbuster::domain::{ActRequest, Sale, SaleState};
use doorbuster::process::{Role, Running};

use lapin::options::BasicPublishOptions;
use sqlx::{Connection as _, Executor as _};

use super::repair::{forget, left, lost_mid_sale, rebuild};
use crate::seams::queue::channel;
use crate::support::{Buyer, Database, World, ask_redis, at_rest, buy, run, sale, servers, until};

const LONG: Duration = Duration::from_secs(40);

async fn until_it_is(running: &Running, sale: &Sale, state: SaleState) {
    until("the sale is rebuilt", LONG, async || {
        let gate = running.parts.gate.describe(&sale.id).await.ok()??;
        (gate.state == state).then_some(())
    })
    .await;
}

/// Redis forgets the third of three orders, and the next buyer reads that the sale is paused.
async fn forget_the_third_order(world: &World, running: &Running, sale: &Sale) {
    let seq = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").number.seq;
    let key = |name: &str| format!("{}:{{{}}}:{name}", world.name, sale.id);
    let redis = &servers().redis;
    let _: i64 = ask_redis(redis, &format!("HSET {} seq {}", key("sale"), seq - 2)).await;
    let _: i64 = ask_redis(redis, &format!("HDEL {} user2", key("users"))).await;
    let _: i64 = ask_redis(redis, &format!("HINCRBY {} unit 1", key("items"))).await;
    let eve = Buyer::of(running, "eve").buy(sale.id.as_str(), "k").await;
    assert_eq!((eve.status, eve.code()), (503, "sale_paused"), "{}", eve.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_automatic_rebuild_restores_a_lost_sale_and_keeps_it_paused() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("gate.rebuild=auto").set("maintenance.every_ms=100");
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    forget(&world, &sale).await;
    until_it_is(&running, &sale, SaleState::Open).await;
    assert_eq!(left(&running.parts, &sale).await, 2);
    running.control.pause(&sale.id, None, &ActRequest::by("test")).await.unwrap();
    forget(&world, &sale).await;
    until_it_is(&running, &sale, SaleState::Paused).await;
    running.control.resume(&sale.id, &ActRequest::by("test")).await.unwrap();
    buy(&running, &sale, 3..5).await;
    assert_eq!(at_rest(&running, &sale).await.live_orders, 5);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_is_behind_is_rebuilt_and_a_lost_sale_waits_for_a_person() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let names = ["", "a", "b"].map(|suffix| format!("{}{suffix}", world.name));
    let [sale, others @ ..] = names.map(|name| sale(&name, 9, 1));
    for sale in [&sale].into_iter().chain(&others) {
        world.open_sale(&running.parts, sale).await;
        buy(&running, sale, 0..3).await;
        at_rest(&running, sale).await;
    }
    let before = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").number;
    forget_the_third_order(&world, &running, &sale).await;
    until_it_is(&running, &sale, SaleState::Open).await;
    let gate = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert!(gate.number.epoch > before.epoch, "{gate:?}");
    assert_eq!(left(&running.parts, &sale).await, 6);

    forget(&world, &sale).await;
    // The rebuilder looks at all sales, and it has rebuilt another one twice since.
    for other in &others {
        forget_the_third_order(&world, &running, other).await;
        until_it_is(&running, other, SaleState::Open).await;
    }
    assert!(running.parts.gate.describe(&sale.id).await.unwrap().is_none(), "somebody may have emptied it");
    let (code, out, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
    assert!(code == 0 && out.contains("3 users"), "{out}{err}");
    running.stop().await;
}

/// A rebuild records its epoch in the sale's row, so that the order log has it a moment later. That is not another
/// history that the rebuild has to go above: it would never end if reading the log took longer than writing it.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_does_not_run_from_its_own_epoch() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("gate.rebuild=manual").set("maintenance.every_ms=50");
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    for epoch in 2..6 {
        let (code, out, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
        assert_eq!(code, 0, "{out}{err}");
        let gate = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
        assert_eq!(gate.number.epoch, epoch, "{out}{err}");
    }
    running.stop().await;
}

/// The log may have had an order without a row that Redis forgot: its unit would be sold again.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_is_not_rebuilt_by_itself_from_a_log_that_may_lack_orders() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    let log = format!("{}.log", world.name);
    let confirmed = channel(&world)
        .await
        .basic_publish("".into(), log.as_str().into(), Default::default(), b"{\"v\":99}", Default::default())
        .await;
    confirmed.unwrap().await.unwrap();
    let number = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").number;
    let key = format!("{}:{{{}}}:sale", world.name, sale.id);
    let _: i64 = ask_redis(&servers().redis, &format!("HSET {key} seq {}", number.seq - 2)).await;
    let eve = Buyer::of(&running, "eve").buy(sale.id.as_str(), "k").await;
    assert_eq!((eve.status, eve.code()), (503, "sale_paused"), "{}", eve.text);
    until("a rebuild has refused", LONG, async || {
        let acts = running.parts.store.acts(&sale.id, 10).await.unwrap();
        let refused = |result: &str| result.contains("may lack orders");
        acts.iter().any(|act| act.result.as_deref().is_some_and(refused)).then_some(())
    })
    .await;
    let gate = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!(gate.state, SaleState::Frozen);
    let (code, out, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
    assert!(code == 3 && out.contains("is open again"), "{code} {out}{err}");
    running.stop().await;
}

/// The worker reports the row while the gate is frozen and has no entry yet. Then the rebuild puts the entry there.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_gets_its_row_during_a_rebuild_is_not_read_as_accepted_afterwards() {
    let (world, front, sale, orders) = lost_mid_sale(12).await;
    let rebuild = rebuild(&world, &front.parts);
    let begun = rebuild.begin(&sale.id).await.unwrap();
    let gathered = rebuild.gather(&begun).await.unwrap();
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    let row =
        until("the order has its row", LONG, async || front.parts.store.order(orders[8]).await.unwrap())
            .await;
    worker.stop().await;
    let loaded = rebuild.load(&begun, &gathered, &|_, _| {}).await.unwrap();
    let epoch = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").number.epoch;
    // As `load` does with an order whose row is written after it has read the rows of that user.
    front.parts.gate.refill_outbox(&sale.id, epoch, &[(&row.order, false)]).await.unwrap();
    rebuild.finish(&begun, &gathered, loaded, &|_, _| {}).await.unwrap();
    let path = format!("/v1/sales/{}/orders/{}", sale.id, orders[8]);
    let read = Buyer::of(&front, "user8").get(&path).await;
    assert_eq!(read.json["status"], "confirmed", "{}", read.text);
    front.stop().await;
}

/// The front that returned the unit has died, and the row of the sale alone has the number of the return.
#[tokio::test(flavor = "multi_thread")]
async fn a_return_that_redis_forgot_is_found_by_its_number_in_the_row() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("audit.every_s=1").set("maintenance.every_ms=100");
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    let orders = running.parts.store.orders_after(&sale.id, None, 10).await.unwrap();
    let cancelled = orders.iter().find(|row| row.order.user.as_str() == "user0").expect("its row").order.id;
    let (code, out, err) =
        run(Some(&world), &["order", "cancel", sale.id.as_str(), &cancelled.to_string()]).await;
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(at_rest(&running, &sale).await.items[0].left, 8);
    let before = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").number;
    running.stop().await;

    // Redis went back to just before the return.
    let key = |name: &str| format!("{}:{{{}}}:{name}", world.name, sale.id);
    let redis = &servers().redis;
    let record: String = ask_redis(redis, &format!("HGET {} user0", key("users"))).await;
    let held = record.strip_suffix("-1").expect("ended");
    let _: i64 = ask_redis(redis, &format!("HSET {} user0 {held}1", key("users"))).await;
    let _: i64 = ask_redis(redis, &format!("HINCRBY {} unit -1", key("items"))).await;
    let _: i64 = ask_redis(redis, &format!("HSET {} seq {}", key("sale"), before.seq - 1)).await;
    let running = world.running().await;
    until("the sale is rebuilt", LONG, async || {
        let gate = running.parts.gate.describe(&sale.id).await.ok()??;
        (gate.number.epoch > before.epoch && gate.state == SaleState::Open).then_some(())
    })
    .await;
    let books = at_rest(&running, &sale).await;
    assert!(books.balances() && books.items[0].left == 8, "{books:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_rebuild_waits_for_one_that_is_under_way() {
    let (world, front, sale, _) = lost_mid_sale(12).await;
    let other = rebuild(&world, &front.parts).begin(&sale.id).await.unwrap();
    let command = ["rebuild", "--sale", sale.id.as_str(), "--yes"];
    let (operator, ()) = tokio::join!(run(Some(&world), &command), async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        // It did not succeed: the sale stays frozen.
        drop(other);
    });
    let (code, out, err) = operator;
    assert!(code == 0 && out.contains("is open again"), "{out}{err}");
    assert!(err.contains("another rebuild of") && err.contains("is under way; waits for it"), "{err}");
    assert_eq!(left(&front.parts, &sale).await, 4);
    front.stop().await;
}

/// What the other one found, this one says as well.
#[tokio::test(flavor = "multi_thread")]
async fn an_operators_rebuild_says_that_the_one_it_waited_for_lacked_a_part_of_the_log() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("gate.rebuild=manual").set("database.timeout_ms=30000");
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..1).await;
    at_rest(&running, &sale).await;
    let (channel, log) = (channel(&world).await, format!("{}.log", world.name));
    let options = BasicPublishOptions::default();
    let (exchange, payload) = (log.as_str().into(), b"not an entry");
    channel.basic_publish(exchange, "".into(), options, payload, Default::default()).await.unwrap();
    forget(&world, &sale).await;
    // The first rebuild has its lease, and waits for the database.
    let mut database = sqlx::SqliteConnection::connect(&world.config().database.url).await.unwrap();
    database.execute("BEGIN IMMEDIATE").await.unwrap();
    let command = ["rebuild", "--sale", sale.id.as_str(), "--yes"];
    let (first, second, ()) = tokio::join!(run(Some(&world), &command), run(Some(&world), &command), async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        database.execute("ROLLBACK").await.unwrap();
    });
    for (code, out, err) in [&first, &second] {
        assert!(*code == 3, "{code} {out}{err}");
    }
    let by_another =
        [&first, &second].iter().filter(|(_, out, _)| out.contains("by another process")).count();
    assert_eq!(by_another, 1, "{first:?} {second:?}");
    running.stop().await;
}
