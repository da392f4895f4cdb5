//! Caching and batching change no result: refusals from the refusal cache are never stale, and the orders of
//! one message succeed or fail separately.

use std::time::Duration;

use doorbuster::control::Control;
use doorbuster::domain::{ActRequest, IdempotencyKey, Millis, Sale, Window};
use doorbuster::front::Role;
use doorbuster::gate::{Outcome, Settlement};
use doorbuster::lease::LeaseOptions;
use doorbuster::process::{Role as ProcessRole, Running};
use doorbuster::queue::Consumer;
use doorbuster::rehearsal::chaos::Weather;
use sqlx::{Connection as _, Executor as _};

use crate::orders::control::left;
use crate::support::{
    Answer, Buyer, Database, World, at_rest, attempt, behind_proxy, id, sale, until, verdicts,
};

const LONG: Duration = Duration::from_secs(40);

/// How often the fronts of this process have refused from the refusal cache.
async fn cached_refusals(running: &Running) -> u64 {
    let metrics = Buyer::operator(running, Role::Viewer).get("/metrics").await.text;
    let line =
        metrics.lines().find_map(|line| line.strip_prefix("doorbuster_intake_refused_from_memory_total "));
    line.map_or(0, |count| count.parse().expect("a count"))
}

/// Clicks as a user without an order until the refusal cache answers. Every click gets the same code.
async fn until_cached(running: &Running, sale: &Sale, code: &str) {
    let late = Buyer::of(running, "late");
    until(&format!("{code} comes from the refusal cache"), LONG, async || {
        let before = cached_refusals(running).await;
        for nth in 0..10 {
            let answer = late.buy(sale.id.as_str(), &format!("late-{nth}")).await;
            assert_eq!(answer.code(), code, "{}", answer.text);
        }
        // Other tests of this process count here too, so ten more are enough.
        (cached_refusals(running).await >= before + 10).then_some(())
    })
    .await;
}

fn keyed(key: String) -> ActRequest {
    ActRequest { key: Some(id::<IdempotencyKey>(&key)), ..ActRequest::by("operator ada") }
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_sold_out_ends_with_a_restock_and_never_reaches_a_holder() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 1, 1);
    world.open_sale(&running.parts, &sale).await;
    let ada = Buyer::of(&running, "ada");
    let first = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(first.status, 202, "{}", first.text);
    let control = Control::new(running.parts.gate.clone(), running.parts.store.clone());
    for round in 0..10 {
        until_cached(&running, &sale, "sold_out").await;
        let again = ada.buy(sale.id.as_str(), "k").await;
        assert_eq!((again.status < 300, again.order_id()), (true, first.order_id()), "{}", again.text);
        let other = ada.buy(sale.id.as_str(), "other").await;
        assert_eq!((other.code(), other.order_id()), ("already_ordered", first.order_id()), "{}", other.text);

        control.restock(&sale.id, &id("unit"), 1, &keyed(format!("r{round}"))).await.unwrap();
        // The next buyer gets the new unit.
        let lucky = Buyer::of(&running, &format!("lucky{round}"));
        let got = lucky.buy(sale.id.as_str(), "k").await;
        assert_eq!(got.status, 202, "{}", got.text);
        let again = lucky.buy(sale.id.as_str(), "k").await;
        assert_eq!(again.order_id(), got.order_id(), "{}", again.text);
    }
    // A returned unit is sold like a new one.
    until_cached(&running, &sale, "sold_out").await;
    let path = format!("{}:cancel", first.headers["location"]);
    until("ada's order can be cancelled", LONG, async || {
        Some(ada.post(&path, &[], "").await).filter(|answer| answer.status == 200)
    })
    .await;
    until("the unit is back", LONG, async || (left(&running.parts, &sale).await == 1).then_some(())).await;
    assert_eq!(Buyer::of(&running, "late").buy(sale.id.as_str(), "now").await.status, 202);
    at_rest(&running, &sale).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_at_one_front_is_never_sold_out_from_the_cache_of_another() {
    let world = World::new(Database::Sqlite).await;
    let one = world.running_as(ProcessRole::Front).await;
    let other = world.running_as(ProcessRole::Front).await;
    let sale = sale(&world.name, 1, 1);
    world.open_sale(&one.parts, &sale).await;
    assert_eq!(Buyer::of(&one, "first").buy(sale.id.as_str(), "k").await.status, 202);
    let control = Control::new(other.parts.gate.clone(), other.parts.store.clone());
    for round in 0..10 {
        until_cached(&one, &sale, "sold_out").await;
        control.restock(&sale.id, &id("unit"), 2, &keyed(format!("r{round}"))).await.unwrap();
        // Once an operator has an answer, it holds at every front.
        let lucky = Buyer::of(&one, &format!("lucky{round}")).buy(sale.id.as_str(), "k").await;
        assert_eq!(lucky.status, 202, "{}", lucky.text);
        let name = format!("buyer{round}");
        let bought = Buyer::of(&other, &name).buy(sale.id.as_str(), "k").await;
        assert_eq!(bought.status, 202, "{}", bought.text);
        let again = Buyer::of(&one, &name).buy(sale.id.as_str(), "k").await;
        assert_eq!(again.order_id(), bought.order_id(), "{}", again.text);
    }
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_just_accepted_is_refused_by_no_fronts_cache() {
    let mut world = World::new(Database::Sqlite).await;
    // Fronts answer fastest when they do not wait for the broker.
    world.set("intake.durability=outbox");
    let one = world.running_as(ProcessRole::Front).await;
    let other = world.running_as(ProcessRole::Front).await;
    let sale = sale(&world.name, 1, 1);
    world.open_sale(&one.parts, &sale).await;
    let mut holder = "first".to_owned();
    let mut held = Buyer::of(&one, &holder).buy(sale.id.as_str(), "k").await;
    // A process without a front returns the unit, so no front hears of it.
    let silent = world.parts().await.gate;
    for round in 0..10 {
        until_cached(&one, &sale, "sold_out").await;
        let returned = Settlement { id: id(held.order_id()), user: id(&holder), outcome: Outcome::Returned };
        silent.settle(&sale.id, &[returned]).await.unwrap();
        holder = format!("buyer{round}");
        held = Buyer::of(&other, &holder).buy(sale.id.as_str(), "k").await;
        assert_eq!(held.status, 202, "{}", held.text);
        let again = Buyer::of(&one, &holder).buy(sale.id.as_str(), "k").await;
        assert_eq!(again.order_id(), held.order_id(), "{}", again.text);
    }
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_refusals_of_a_sale_not_open_paused_or_closed_are_never_stale() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running_as(ProcessRole::Front).await;
    let window = Window { opens_at: Millis::now().plus(Duration::from_secs(4)), closes_at: None };
    let sale = Sale { window, ..sale(&world.name, 1, 1) };
    world.open_sale(&running.parts, &sale).await;
    until_cached(&running, &sale, "sale_not_open").await;
    // From the opening on, by Redis's clock, a click gets a unit.
    until("the sale has opened", LONG, async || {
        let now = running.parts.gate.clock().await.unwrap();
        (now >= window.opens_at).then_some(())
    })
    .await;
    let first = Buyer::of(&running, "first").buy(sale.id.as_str(), "k").await;
    assert_eq!(first.status, 202, "{}", first.text);

    let control = Control::new(running.parts.gate.clone(), running.parts.store.clone());
    let late = Buyer::of(&running, "late");
    for round in 0..3 {
        until_cached(&running, &sale, "sold_out").await;
        control.pause(&sale.id, None, &keyed(format!("p{round}"))).await.unwrap();
        assert_eq!(late.buy(sale.id.as_str(), "k").await.code(), "sale_paused");
        control.resume(&sale.id, &keyed(format!("o{round}"))).await.unwrap();
        assert_eq!(late.buy(sale.id.as_str(), "k").await.code(), "sold_out");
    }
    control.close(&sale.id, &keyed("c".into())).await.unwrap();
    assert_eq!(late.buy(sale.id.as_str(), "k").await.code(), "sale_closed");
    until_cached(&running, &sale, "sale_closed").await;
    let again = Buyer::of(&running, "first").buy(sale.id.as_str(), "k").await;
    assert_eq!(again.order_id(), first.order_id(), "{}", again.text);
    running.stop().await;
}

/// Lets the gate accept one order for each of these users, and returns the orders.
async fn admit_all(running: &Running, sale: &Sale, users: &[&str]) -> Vec<doorbuster::domain::Order> {
    let attempts: Vec<_> = users.iter().map(|user| attempt(&sale.id, user, Some("k"), 1)).collect();
    let accepted = verdicts(&running.parts.gate, &sale.id, &attempts).await;
    accepted
        .into_iter()
        .map(|verdict| match verdict {
            doorbuster::domain::Verdict::Accepted(order) => order,
            other => panic!("{other:?}"),
        })
        .collect()
}

async fn publish_all(running: &Running, orders: &[doorbuster::domain::Order]) {
    let publisher = running.parts.publisher.as_ref().expect("a front publishes");
    publisher.publish(orders).await.expect("confirmed");
    for orders in orders.chunk_by(|one, next| one.sale == next.sale) {
        let ids: Vec<_> = orders.iter().map(|order| order.id).collect();
        running.parts.gate.mark_confirmed(&orders[0].sale, &ids).await.expect("marked");
    }
}

/// Publishes the orders of these users as one message.
async fn publish_one_message(
    running: &Running,
    sale: &Sale,
    users: &[&str],
) -> Vec<doorbuster::domain::Order> {
    let orders = admit_all(running, sale, users).await;
    publish_all(running, &orders).await;
    orders
}

async fn status(running: &Running, sale: &Sale, user: &str, order: &doorbuster::domain::Order) -> Answer {
    Buyer::of(running, user).get(&format!("/v1/sales/{}/orders/{}", sale.id, order.id)).await
}

async fn execute(world: &World, statement: String) {
    let mut database = sqlx::PgConnection::connect(&world.config().database.url).await.unwrap();
    database.execute(sqlx::AssertSqlSafe(statement)).await.unwrap();
}

async fn dead_letters(running: &Running) -> Vec<serde_json::Value> {
    let operator = Buyer::operator(running, Role::Operator);
    operator.get("/v1/admin/dead-letters").await.json["dead_letters"].as_array().cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_poisonous_order_becomes_a_dead_letter_and_the_rest_of_its_message_is_confirmed() {
    let world = World::new(Database::Postgres).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    // The row has a state that this build does not know. The lease keeps workers away until it is inserted.
    let lease = running.parts.leases.take(sale.id.as_str(), ["bad"], LeaseOptions::default()).await.unwrap();
    let orders = publish_one_message(&running, &sale, &["ada", "bad", "carl"]).await;
    let poison = orders[1].id;
    execute(
        &world,
        format!(
            "INSERT INTO orders VALUES ('{poison}', '{}', 'bad', 'unit', 1, 'martian', NULL, 9, 9, 1, 1, NULL, 'k', NULL, 'f', 1, 0, 0, 0)",
            sale.id
        ),
    )
    .await;
    drop(lease);
    let dead_letter =
        until("the order is a dead letter", LONG, async || dead_letters(&running).await.pop()).await;
    assert_eq!(dead_letter["id"], poison.to_string(), "{dead_letter}");
    assert_eq!(
        dead_letter["orders"].as_array().map(Vec::len),
        Some(1),
        "only the poisonous order: {dead_letter}"
    );
    for (user, nth) in [("ada", 0), ("carl", 2)] {
        until("the others are confirmed", LONG, async || {
            let answer = status(&running, &sale, user, &orders[nth]).await;
            (answer.json["status"] == "confirmed").then_some(())
        })
        .await;
    }
    execute(&world, format!("DELETE FROM orders WHERE id = '{poison}'")).await;
    let operator = Buyer::operator(&running, Role::Operator);
    let body = format!(r#"{{"id":"{poison}"}}"#);
    let replayed = operator.post("/v1/admin/dead-letters:replay", &[], &body).await;
    assert_eq!(replayed.status, 200, "{}", replayed.text);
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.live_orders, books.failed_orders), (3, 0), "{books:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_user_delays_no_other_order_of_the_message() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let busy = running.parts.leases.take(sale.id.as_str(), ["bob"], LeaseOptions::default()).await.unwrap();
    let orders = publish_one_message(&running, &sale, &["ada", "bob", "carl"]).await;
    for (user, nth) in [("ada", 0), ("carl", 2)] {
        until("the others are confirmed", LONG, async || {
            let answer = status(&running, &sale, user, &orders[nth]).await;
            (answer.json["status"] == "confirmed").then_some(())
        })
        .await;
    }
    assert_eq!(status(&running, &sale, "bob", &orders[1]).await.json["status"], "accepted");
    busy.guard.expect("held").release().await.unwrap();
    let books = at_rest(&running, &sale).await;
    assert_eq!(books.live_orders, 3, "{books:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_broker_gave_up_becomes_one_dead_letter_per_order() {
    let mut world = World::new(Database::Postgres).await;
    world.set("queue.delivery_limit=2").set("sweep.every_ms=100");
    let running = world.running_as(ProcessRole::Front).await;
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&running.parts, &sale).await;
    let orders = publish_one_message(&running, &sale, &["ada", "bob", "carl"]).await;
    for _ in 0..3 {
        let mut doomed = Consumer::new(world.config().queue(), 10);
        assert_eq!(doomed.next_batch(1, Duration::from_millis(5)).await.len(), 1);
        doomed.close().await;
    }
    let dead_letters = until("there are three dead letters", LONG, async || {
        Some(dead_letters(&running).await).filter(|dead_letters| dead_letters.len() == 3)
    })
    .await;
    let mut ids: Vec<_> = dead_letters.iter().filter_map(|dead_letter| dead_letter["id"].as_str()).collect();
    ids.sort_unstable();
    let mut expected: Vec<_> = orders.iter().map(|order| order.id.to_string()).collect();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    for dead_letter in &dead_letters {
        assert_eq!(dead_letter["reason"], "delivery_limit", "{dead_letter}");
        assert_eq!(dead_letter["orders"].as_array().map(Vec::len), Some(1), "{dead_letter}");
    }
    // Failing one order leaves the others as they are.
    let operator = Buyer::operator(&running, Role::Operator);
    let body = format!(r#"{{"id":"{}"}}"#, orders[1].id);
    let failed = operator.post("/v1/admin/dead-letters:fail", &[], &body).await;
    assert_eq!((failed.status, failed.json["end"].as_str()), (200, Some("failed")), "{}", failed.text);
    for (user, nth, expected) in [("ada", 0, "accepted"), ("bob", 1, "failed"), ("carl", 2, "accepted")] {
        assert_eq!(status(&running, &sale, user, &orders[nth]).await.json["status"], expected, "{user}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_buyers_share_messages_and_each_gets_one_order() {
    let world = World::new(Database::Postgres).await;
    let running = world.running().await;
    let sale = sale(&world.name, 300, 1);
    world.open_sale(&running.parts, &sale).await;
    let buying = (0..400).map(|nth| {
        let buyer = Buyer::of(&running, &format!("user{nth}"));
        let sale = sale.id.clone();
        async move { buyer.buy(sale.as_str(), "k").await }
    });
    let answers = futures_util::future::join_all(buying).await;
    let accepted = answers.iter().filter(|answer| answer.status == 202).count();
    let sold_out = answers.iter().filter(|answer| answer.code() == "sold_out").count();
    assert_eq!((accepted, sold_out), (300, 100));
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.live_orders, books.failed_orders), (300, 0), "{books:?}");
    running.stop().await;
}

/// A worker makes the calls for the sales of a batch together. Each may have run although its answer is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_many_sales_is_persisted_once_although_answers_are_lost() {
    let mut world = World::new(Database::Postgres).await;
    world.set("redis.timeout_ms=400").set("sweep.overtaken_after_ms=1000").set("sweep.every_ms=100");
    let front = world.running_as(ProcessRole::Front).await;
    let sales: Vec<Sale> = (0..40).map(|nth| sale(&format!("{}-{nth}", world.name), 3, 1)).collect();
    for sale in &sales {
        world.open_sale(&front.parts, sale).await;
    }
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let worker = world.running_as(ProcessRole::Worker).await;
    // This order shows that the worker is connected.
    assert_eq!(Buyer::of(&front, "first").buy(sales[0].id.as_str(), "k").await.status, 202);
    at_rest(&front, &sales[0]).await;
    let mut orders = Vec::new();
    for sale in &sales[1..] {
        orders.extend(admit_all(&front, sale, &["ada", "bob", "carl"]).await);
    }
    proxy.set(Weather::AnswersLost);
    let leases = &front.parts.leases;
    let held = async || {
        let held = sales.iter().map(|sale| leases.list(sale.id.as_str()));
        let held = futures_util::future::try_join_all(held).await.unwrap();
        held.iter().filter(|leases| !leases.is_empty()).count()
    };
    // Start to look at once: a lease whose acquisition got no answer is released after a while.
    let taken = until("several sales have leases although the answers are lost", LONG, async || {
        (held().await > 1).then_some(())
    });
    tokio::join!(publish_all(&front, &orders), taken);
    proxy.set(Weather::Fair);
    for sale in &sales[1..] {
        let books = at_rest(&front, sale).await;
        assert_eq!((books.live_orders, books.failed_orders), (3, 0), "{}: {books:?}", sale.id);
    }
    until("no lease is left", LONG, async || (held().await == 0).then_some(())).await;
    worker.stop().await;
    front.stop().await;
}
