//! Payments that arrive at the same time are applied in few transactions, and each is answered as if it had come alone.

use std::collections::BTreeSet;
use std::time::Duration;

use doorbuster::domain::{OrderStatus, Sale};
use doorbuster::process::Running;
use futures_util::future::join_all;

use super::payments::{Event, LONG, SECRET, event, status};
use crate::faults::stalls::Session;
use crate::support::{Buyer, Database, World, at_rest, sale, until};

/// A front and a worker that know the provider `acme`.
async fn with_a_provider(database: Database) -> (World, Running) {
    let mut world = World::new(database).await;
    world.set("maintenance.every_ms=200").set(&format!("payments.secrets=acme {SECRET}"));
    let running = world.running().await;
    (world, running)
}

/// An open sale with so many confirmed orders, each of another user.
async fn with_orders(world: &World, running: &Running, name: &str, count: usize) -> (Sale, Vec<String>) {
    let sale = sale(name, 1_000, 1);
    world.open_sale(&running.parts, &sale).await;
    let buy = async |nth: usize| {
        let order = Buyer::of(running, &format!("user{nth}")).buy(sale.id.as_str(), "k").await;
        assert_eq!(order.status, 202, "{}", order.text);
        order.order_id().to_owned()
    };
    let orders = join_all((0..count).map(buy)).await;
    until("all orders have rows", LONG, async || {
        (running.parts.store.totals(&sale.id).await.unwrap().orders == count as u64).then_some(())
    })
    .await;
    at_rest(running, &sale).await;
    (sale, orders)
}

fn paid(sale: &Sale, order: &str) -> Event {
    event(&format!("evt-{order}"), "payment.succeeded", sale, order)
}

/// Among plain payments there is one of each other kind; all are sent at once.
async fn each_payment_of_a_crowd_is_answered_as_if_it_had_come_alone(database: Database) {
    let (world, running) = with_a_provider(database).await;
    let (sale, orders) = with_orders(&world, &running, &world.name, 120).await;
    let (_, others) = with_orders(&world, &running, &format!("{}b", world.name), 1).await;
    let store = &running.parts.store;
    let (cancelled, plain) = orders.split_last().unwrap();
    let done = Buyer::of(&running, "user119")
        .post(&format!("/v1/sales/{}/orders/{cancelled}:cancel", sale.id.as_str()), &[], "")
        .await;
    assert_eq!(done.status, 200, "{}", done.text);
    at_rest(&running, &sale).await;
    let before = store.highest_place(&sale.id).number;

    let mut events: Vec<(Event, &str)> = plain.iter().map(|order| (paid(&sale, order), "applied")).collect();
    // Either of the two payments for this order may come first.
    events[1].1 = "applied or late";
    // The same event twice, a second payment for an order, one that is late, one without an order, of another sale.
    events.push((paid(&sale, &plain[0]), "applied"));
    events.push((event("evt-second", "payment.succeeded", &sale, &plain[1]), "applied or late"));
    events.push((paid(&sale, cancelled), "retaken or pending"));
    events.push((
        event("evt-nobody", "payment.succeeded", &sale, &uuid::Uuid::now_v7().to_string()),
        "pending",
    ));
    events.push((event("evt-elsewhere", "payment.succeeded", &sale, &others[0]), "payment_mismatch"));
    let answers = join_all(events.iter().map(|(event, _)| event.send(&running))).await;
    for (answer, (_, wanted)) in answers.iter().zip(&events) {
        let said = answer.json["state"].as_str().unwrap_or_else(|| answer.code());
        assert!(wanted.split(" or ").any(|wanted| wanted == said), "{wanted}: {}", answer.text);
    }
    let after = store.highest_place(&sale.id).number;
    assert!(after - before < 60, "{} transactions for {} payments", after - before, events.len());

    for order in plain {
        assert_eq!(status(&running, order).await, Some(OrderStatus::Paid));
        let history = store.history(order.parse().unwrap()).await.unwrap();
        assert_eq!(history.len(), 1, "paid once: {history:?}");
    }
    let seconds = store.payments_of(&[plain[1].parse().unwrap()]).await.unwrap();
    let seconds = seconds.into_values().flatten().map(|payment| payment.state.as_str());
    assert_eq!(seconds.collect::<BTreeSet<_>>(), BTreeSet::from(["applied", "late"]));
    assert_eq!(status(&running, &others[0]).await, Some(OrderStatus::Confirmed), "its sale is another");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_payment_of_a_crowd_is_answered_as_if_it_had_come_alone_on_postgres() {
    each_payment_of_a_crowd_is_answered_as_if_it_had_come_alone(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_payment_of_a_crowd_is_answered_as_if_it_had_come_alone_on_mariadb() {
    each_payment_of_a_crowd_is_answered_as_if_it_had_come_alone(Database::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_payment_of_a_crowd_is_answered_as_if_it_had_come_alone_on_sqlite() {
    each_payment_of_a_crowd_is_answered_as_if_it_had_come_alone(Database::Sqlite).await;
}

/// The order whose row is locked.
const LOCKED: usize = 20;

/// A session of somebody else holds the row of one order.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_order_delays_no_other_payment_for_good() {
    let (world, running) = with_a_provider(Database::Postgres).await;
    let (sale, orders) = with_orders(&world, &running, &world.name, 40).await;
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    // The first two payments go at once, and alone.
    let locked = &orders[LOCKED];
    holder.execute(format!("SELECT 1 FROM orders WHERE id = '{locked}' FOR UPDATE")).await;
    let events: Vec<Event> = orders.iter().map(|order| paid(&sale, order)).collect();
    let answers = join_all(events.iter().map(|event| event.send(&running))).await;
    assert_ne!(answers[LOCKED].json["state"], "applied", "{}", answers[LOCKED].text);
    for (_, answer) in answers.iter().enumerate().filter(|(nth, _)| *nth != LOCKED) {
        assert_eq!((answer.status, answer.json["state"].as_str()), (200, Some("applied")), "{}", answer.text);
    }
    holder.execute("ROLLBACK".into()).await;
    until("the locked order is paid", LONG, async || {
        let answer = events[LOCKED].send(&running).await;
        (answer.json["state"] == "applied").then_some(())
    })
    .await;
    running.stop().await;
}

/// A session of somebody else holds what every change of one sale needs, and many pay in that sale.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_in_which_nothing_can_be_paid_delays_no_payment_of_another() {
    let (world, running) = with_a_provider(Database::Postgres).await;
    let (locked, of_locked) = with_orders(&world, &running, &format!("{}a", world.name), 150).await;
    let (free, of_free) = with_orders(&world, &running, &world.name, 60).await;
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    let hold = format!("SELECT 1 FROM places WHERE sale_id = '{}' FOR UPDATE", locked.id.as_str());
    holder.execute(hold).await;
    let stuck = async {
        let events: Vec<Event> = of_locked.iter().map(|order| paid(&locked, order)).collect();
        let answers = join_all(events.iter().map(|event| event.send(&running))).await;
        assert!(answers.iter().all(|answer| answer.json["state"] != "applied"), "its sale is locked");
        events
    };
    let go_on = async {
        let mut clock = tokio::time::interval(Duration::from_millis(200));
        for order in &of_free {
            clock.tick().await;
            let answer = paid(&free, order).send(&running).await;
            assert_eq!(
                (answer.status, answer.json["state"].as_str()),
                (200, Some("applied")),
                "{}",
                answer.text
            );
        }
    };
    let (events, ()) = tokio::join!(stuck, go_on);
    holder.execute("ROLLBACK".into()).await;
    for event in &events {
        until("it is paid", LONG, async || {
            (event.send(&running).await.json["state"] == "applied").then_some(())
        })
        .await;
    }
    running.stop().await;
}
