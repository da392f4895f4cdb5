//! The life of an accepted order: buyers and operators pay, cancel and refund it, and its unit is sold again.

use std::time::Duration;

use doorbuster::domain::{Act, ActRequest, Number, OrderStatus, Sale, SaleState, Terms, Verdict};
use doorbuster::front::Role;
use doorbuster::lease::LeaseOptions;
use doorbuster::orders::Orders;
use doorbuster::process::Role as Part;
use doorbuster::rehearsal::chaos::Weather;
use doorbuster::store::{Change, Changed, Claim};

use super::payments::{SECRET, event};
use crate::support::{
    Answer, Buyer, Database, Doorbuster, World, ask_redis, at_rest, attempt, behind_proxy, run, sale,
    servers, until,
};

const LONG: Duration = Duration::from_secs(40);

async fn until_confirmed(buyer: &Buyer, answer: &Answer) -> Answer {
    until("the order is confirmed", LONG, async || {
        Some(buyer.get(&answer.headers["location"]).await).filter(|read| read.json["status"] == "confirmed")
    })
    .await
}

fn act_path(sale: &doorbuster::domain::Sale, order: &Answer, act: &str) -> String {
    format!("/v1/sales/{}/orders/{}:{act}", sale.id, order.order_id())
}

fn statuses(answer: &Answer) -> Vec<&str> {
    let history = answer.json["history"].as_array().expect("a history");
    history.iter().filter_map(|entry| entry["status"].as_str()).collect()
}

async fn sells_a_cancelled_unit_again(database: Database) {
    let world = World::new(database).await;
    let running = world.running().await;
    let sale = sale(&world.name, 1, 1);
    world.open_sale(&running.parts, &sale).await;
    let (ada, bob) = (Buyer::of(&running, "ada"), Buyer::of(&running, "bob"));
    let order = ada.buy(sale.id.as_str(), "k").await;
    until_confirmed(&ada, &order).await;
    assert_eq!(bob.buy(sale.id.as_str(), "k").await.code(), "sold_out");
    let body = r#"{"reason":"too small"}"#;
    for _ in 0..2 {
        let answer = ada.post(&act_path(&sale, &order, "cancel"), &[], body).await;
        assert_eq!(
            (answer.status, answer.json["status"].as_str()),
            (200, Some("cancelled")),
            "{}",
            answer.text
        );
        assert_eq!(statuses(&answer), ["accepted", "confirmed", "cancelled"]);
    }
    let again = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!((again.status, again.order_id()), (200, order.order_id()), "the same click: {}", again.text);
    assert_eq!(again.json["status"], "cancelled");
    let sold = bob.buy(sale.id.as_str(), "k").await;
    assert_eq!(sold.status, 202, "its unit is on sale again: {}", sold.text);
    assert_eq!(ada.buy(sale.id.as_str(), "another").await.code(), "sold_out");
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.live_orders, books.items[0].left), (1, 0));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_unit_is_sold_again_on_sqlite() {
    sells_a_cancelled_unit_again(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_unit_is_sold_again_on_postgres() {
    sells_a_cancelled_unit_again(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_unit_is_sold_again_on_mariadb() {
    sells_a_cancelled_unit_again(Database::Mariadb).await;
}

/// No worker runs, so the order waits in the queue. Its message is processed after the order has ended.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_cancelled_while_it_waits_in_the_queue() {
    let world = World::new(Database::Postgres).await;
    let front = world.running_as(Part::Front).await;
    let sale = sale(&world.name, 1, 1);
    world.open_sale(&front.parts, &sale).await;
    let ada = Buyer::of(&front, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(order.status, 202, "{}", order.text);
    let answer = ada.post(&act_path(&sale, &order, "cancel"), &[], "").await;
    assert_eq!((answer.status, answer.json["status"].as_str()), (200, Some("cancelled")), "{}", answer.text);
    assert_eq!(statuses(&answer), ["accepted", "cancelled"]);
    let bob = Buyer::of(&front, "bob").buy(sale.id.as_str(), "k").await;
    assert_eq!(bob.status, 202, "{}", bob.text);
    let worker = world.running_as(Part::Worker).await;
    let books = at_rest(&front, &sale).await;
    assert_eq!((books.live_orders, books.items[0].left), (1, 0));
    assert_eq!(ada.get(&order.headers["location"]).await.json["status"], "cancelled");
    worker.stop().await;
    front.stop().await;
}

/// Simulates a process that dies after the database has the change and before it reaches the gate.
#[tokio::test(flavor = "multi_thread")]
async fn maintenance_finishes_an_interrupted_return() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=200");
    let running = world.running().await;
    let sale = sale(&world.name, 1, 1);
    world.open_sale(&running.parts, &sale).await;
    let ada = Buyer::of(&running, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    until_confirmed(&ada, &order).await;
    at_rest(&running, &sale).await;
    let change = Change {
        id: order.order_id().parse().unwrap(),
        act: Act::Cancel,
        asked: ActRequest::by("op"),
        fence: i64::MAX,
    };
    let changed = running.parts.store.change(&[change], &|| true).await.unwrap();
    assert!(
        matches!(&changed[..], [Changed::Now(row)] if row.status == OrderStatus::Cancelled),
        "{changed:?}"
    );
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.live_orders, books.items[0].left), (0, 1));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_cancellations_return_one_unit() {
    let world = World::new(Database::Postgres).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let (ada, operator) = (Buyer::of(&running, "ada"), Buyer::operator(&running, Role::Operator));
    let order = ada.buy(sale.id.as_str(), "k").await;
    let admin = format!("/v1/admin{}", act_path(&sale, &order, "cancel").trim_start_matches("/v1"));
    let path = act_path(&sale, &order, "cancel");
    let all = (0..20).map(|nth| {
        let (who, path) = if nth % 2 == 0 { (&ada, &path) } else { (&operator, &admin) };
        who.post(path, &[], "")
    });
    for answer in futures_util::future::join_all(all).await {
        // All need the same lease: a request that waits too long gets a 503 and may be repeated.
        assert!([200, 503].contains(&answer.status), "{}", answer.text);
    }
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.live_orders, books.items[0].left), (0, 5));
    let id = order.order_id().parse().unwrap();
    assert_eq!(running.parts.store.history(id).await.unwrap().len(), 1, "the order ends once");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_pay_and_refund_and_illegal_acts_are_refused() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let ada = Buyer::of(&running, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    until_confirmed(&ada, &order).await;
    let operator = Buyer::operator(&running, Role::Operator);
    let admin = |name: &str| format!("/v1/admin{}", act_path(&sale, &order, name).trim_start_matches("/v1"));

    let refused = operator.post(&admin("refund"), &[], "").await;
    assert_eq!((refused.status, refused.code()), (409, "invalid_transition"), "{}", refused.text);
    assert_eq!(refused.json["from"], "confirmed");
    assert_eq!(refused.json["allowed"], serde_json::json!(["pay", "cancel"]));
    let viewer = Buyer::operator(&running, Role::Viewer).post(&admin("pay"), &[], "").await;
    assert_eq!(viewer.status, 403, "{}", viewer.text);
    let paid = operator.post(&admin("pay"), &[], r#"{"reason":"by transfer"}"#).await;
    assert_eq!(paid.status, 200, "{}", paid.text);
    assert_eq!(paid.json["events"][0]["by"], "operator op");
    assert_eq!(paid.json["events"][0]["reason"], "by transfer");
    let late = ada.post(&act_path(&sale, &order, "cancel"), &[], "").await;
    assert_eq!((late.status, late.code()), (409, "invalid_transition"), "{}", late.text);
    assert_eq!(late.json["allowed"], serde_json::json!([]), "a buyer cannot refund");

    for (path, body, status, code) in [
        (act_path(&sale, &order, "pay"), "", 404, "not_found"),
        (act_path(&sale, &order, "cancel"), r#"{"reason":""}"#, 400, "malformed"),
        (act_path(&sale, &order, "cancel"), r#"{"because":"x"}"#, 400, "malformed"),
        (format!("/v1/sales/{}/orders/nonsense:cancel", sale.id), "", 404, "order_not_found"),
        (format!("/v1/sales/another/orders/{}:cancel", order.order_id()), "", 404, "sale_not_found"),
    ] {
        let answer = ada.post(&path, &[], body).await;
        assert_eq!((answer.status, answer.code()), (status, code), "{path}: {}", answer.text);
    }
    let bob = Buyer::of(&running, "bob").post(&act_path(&sale, &order, "cancel"), &[], "").await;
    assert_eq!((bob.status, bob.code()), (404, "order_not_found"), "another user's order: {}", bob.text);

    let (code, out, err) = run(Some(&world), &["order", "refund", sale.id.as_str(), order.order_id()]).await;
    assert!(code == 0 && out.contains("is refunded"), "{out}{err}");
    let (code, out, _) = run(Some(&world), &["order", "show", sale.id.as_str(), order.order_id()]).await;
    assert!(code == 0 && out.contains("paid") && out.contains("by transfer"), "{out}");
    let (code, _, err) = run(Some(&world), &["order", "cancel", sale.id.as_str(), order.order_id()]).await;
    assert!(code == 1 && err.contains("an order that is refunded cannot be cancelled"), "{err}");
    let read = ada.get(&order.headers["location"]).await;
    assert_eq!(statuses(&read), ["accepted", "confirmed", "paid", "refunded"]);
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.live_orders, books.items[0].left), (0, 5));
    running.stop().await;
}

/// The database is unavailable, so the end cannot be written, and the gate must not return the unit.
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_is_not_free_until_its_orders_end_is_committed() {
    let mut world = World::new(Database::Postgres).await;
    world.set("database.timeout_ms=1000");
    world.parts().await;
    let database = behind_proxy(&mut world, "database.url").await;
    let front = world.running_as(Part::Front).await;
    let sale = sale(&world.name, 1, 1);
    world.open_sale(&front.parts, &sale).await;
    let (ada, bob) = (Buyer::of(&front, "ada"), Buyer::of(&front, "bob"));
    let order = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(order.status, 202, "{}", order.text);
    database.set(Weather::Down);
    let unfinished = ada.post(&act_path(&sale, &order, "cancel"), &[], "").await;
    assert_eq!((unfinished.status, unfinished.code()), (503, "act_unfinished"), "{}", unfinished.text);
    assert_eq!(bob.buy(sale.id.as_str(), "k").await.code(), "sold_out", "the order has not ended");
    let read = ada.get(&order.headers["location"]).await;
    assert_eq!(read.json["status"], "accepted", "{}", read.text);
    database.set(Weather::Fair);
    until("the order is cancelled", LONG, async || {
        let answer = ada.post(&act_path(&sale, &order, "cancel"), &[], "").await;
        (answer.status == 200).then_some(())
    })
    .await;
    assert_eq!(bob.buy(sale.id.as_str(), "k").await.status, 202);
    let id = order.order_id().parse().unwrap();
    let left = async || front.parts.gate.ticket(&sale.id, id).await.unwrap().is_none().then_some(());
    until("the order has left the gate", LONG, left).await;
    database.set(Weather::Down);
    let unread = ada.post(&act_path(&sale, &order, "cancel"), &[], "").await;
    assert_eq!(
        (unread.status, unread.code()),
        (503, "status_unavailable"),
        "nothing was tried: {}",
        unread.text
    );
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_does_not_expire_while_another_process_leases_its_user() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=200");
    let running = world.running().await;
    let terms = Terms { pay_within_s: Some(8), ..Terms::default() };
    let sale = Sale { terms, ..sale(&world.name, 5, 1) };
    world.open_sale(&running.parts, &sale).await;
    let ada = Buyer::of(&running, "ada");
    let first = ada.buy(sale.id.as_str(), "k").await;
    let status = async |order: &Answer| {
        let row = running.parts.store.order(order.order_id().parse().unwrap()).await.unwrap();
        row.map(|row| row.status)
    };
    until("the first order has a row", LONG, async || status(&first).await).await;
    let options = LeaseOptions::lasting(LONG);
    let leases = &running.parts.leases;
    let guard = leases.acquire(sale.id.as_str(), ["ada"], options, LONG).await.unwrap().expect("taken");
    let second = Buyer::of(&running, "bob").buy(sale.id.as_str(), "k").await;
    let expired = async |order: &Answer| (status(order).await == Some(OrderStatus::Expired)).then_some(());
    until("the later order has expired", LONG, async || expired(&second).await).await;
    assert_eq!(status(&first).await, Some(OrderStatus::Confirmed), "another process holds its user's lease");
    guard.release().await.unwrap();
    until("the first order has expired", LONG, async || expired(&first).await).await;
    at_rest(&running, &sale).await;
    running.stop().await;
}

/// Simulates a Redis that comes back without its last write, the return of a unit.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_lost_a_return_freezes_and_accepts_no_other() {
    let world = World::new(Database::Sqlite).await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&parts, &sale).await;
    let orders = Orders::new(parts.gate.clone(), parts.store.clone(), parts.leases.clone());
    let mut accepted = Vec::new();
    for user in ["ada", "bob", "carl"] {
        let verdict = parts.gate.admit(attempt(&sale.id, user, Some("k"), 1)).await.unwrap();
        let Verdict::Accepted(order) = verdict else { panic!("{verdict:?}") };
        let claim = Claim { order: order.clone(), fence: 1 };
        parts.store.record(&[claim], &|| true).await.unwrap();
        accepted.push(order);
    }
    let request = ActRequest::by("op");
    orders.act(&sale.id, accepted[0].id, Act::Cancel, &request).await.unwrap();
    let witnessed = parts.store.sale(&sale.id).await.unwrap().expect("a row").witnessed;
    let gate = parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!((witnessed, gate.items[0].left), (gate.number, 3));
    let key = format!("{}:{{{}}}:sale", world.name, sale.id);
    let _: i64 = ask_redis(&servers().redis, &format!("HSET {key} seq {}", witnessed.seq - 1)).await;

    // A new process that has seen none of this compares the books.
    let fresh = world.parts().await;
    world.compare_books(&fresh).await;
    let frozen = fresh.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!(frozen.state, SaleState::Frozen, "the comparison finds the lost return");

    // Before any comparison, the next return must not raise the number and so hide the loss.
    let _: i64 = ask_redis(&servers().redis, &format!("HSET {key} state open")).await;
    orders.act(&sale.id, accepted[1].id, Act::Cancel, &request).await.unwrap();
    let frozen = fresh.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!((frozen.state, frozen.items[0].left), (SaleState::Frozen, 3));
    assert_eq!(parts.store.count_returns(&sale.id).await.unwrap(), 1, "the return waits for the rebuild");
}

/// A frozen gate takes no units back. It must not show the buyer a cancelled order as live.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_gate_does_not_show_a_cancelled_order_as_accepted() {
    let world = World::new(Database::Sqlite).await;
    let front = world.running_as(Part::Front).await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&front.parts, &sale).await;
    let ada = Buyer::of(&front, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    front.parts.gate.freeze_if_behind(&sale.id, Number { epoch: 9, seq: 9 }).await.unwrap();
    let cancelled = ada.post(&act_path(&sale, &order, "cancel"), &[], "").await;
    assert_eq!(cancelled.json["status"], "cancelled", "{}", cancelled.text);
    let read = ada.get(&order.headers["location"]).await;
    assert_eq!(read.json["status"], "cancelled", "{}", read.text);
    let again = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!((again.status, again.json["status"].as_str()), (200, Some("cancelled")), "{}", again.text);
    // A list might lack orders that Redis has lost.
    let mine = ada.get(&format!("/v1/sales/{}/orders/mine", sale.id)).await;
    assert_eq!((mine.status, mine.code()), (503, "status_unavailable"), "{}", mine.text);
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_was_answered_is_read_although_the_order_waits_to_be_settled() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=60000").set(&format!("payments.secrets=acme {SECRET}"));
    let running = world.running_as(Part::Front).await;
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&running.parts, &sale).await;
    let [ada, bob, carol] = ["ada", "bob", "carol"].map(|user| Buyer::of(&running, user));
    let mut orders = Vec::new();
    for buyer in [&ada, &bob, &carol] {
        orders.push(buyer.buy(sale.id.as_str(), "k").await.order_id().to_owned());
    }
    // A worker that dies after it has committed the rows leaves the orders' entries in the gate.
    let mut worker = Doorbuster::start_with(&world, "worker", Some("settle.before=abort")).await;
    until("the worker dies", LONG, async || worker.has_ended().then_some(())).await;
    for order in &orders {
        let row = running.parts.store.order(order.parse().unwrap()).await.unwrap();
        assert_eq!(row.map(|row| row.status), Some(OrderStatus::Confirmed));
    }
    let answer = event("evt-1", "payment.succeeded", &sale, &orders[0]).send(&running).await;
    assert_eq!(answer.json["state"], "applied", "{}", answer.text);
    let path = format!("/v1/admin/sales/{}/orders/{}:pay", sale.id, orders[1]);
    let answer = Buyer::operator(&running, Role::Admin).post(&path, &[], "").await;
    assert_eq!(answer.json["order"]["status"], "paid", "{}", answer.text);
    let path = format!("/v1/sales/{}/orders/{}:cancel", sale.id, orders[2]);
    let answer = carol.post(&path, &[], "").await;
    assert_eq!(answer.json["status"], "cancelled", "{}", answer.text);
    for (buyer, order, state) in [(ada, 0, "paid"), (bob, 1, "paid"), (carol, 2, "cancelled")] {
        let read = buyer.get(&format!("/v1/sales/{}/orders/{}", sale.id, orders[order])).await;
        assert_eq!(read.json["status"], state, "{}", read.text);
    }
    running.stop().await;
}
