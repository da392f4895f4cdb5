//! The events of one order, as its buyer's page reads them, at whichever front.

use std::time::{Duration, Instant};

use doorbuster::domain::{Millis, Number, OrderStatus, Sale, SaleId};
use doorbuster::front::Role;
use doorbuster::intake::OrderView;
use doorbuster::process::{Role as Part, Running};
use doorbuster::store::{OrderEvent, OrderRow};

use super::payments::{SECRET, event};
use crate::recovery::repair::forget;
use crate::seams::store::claim;
use crate::support::{Buyer, Database, Event, Events, World, id, order, request, run, sale, until};

fn states(events: &[Event]) -> Vec<(&str, &str)> {
    events.iter().map(|event| (event.id.as_str(), event.data["status"].as_str().expect("a status"))).collect()
}

/// The events until one with this state, which is the last of them.
async fn until_state(events: &mut Events, state: &str) -> Vec<Event> {
    let mut seen = Vec::new();
    loop {
        seen.push(events.next().await);
        if seen.last().is_some_and(|event| event.data["status"] == state) {
            return seen;
        }
    }
}

fn path_of(sale: &Sale, order: &str) -> String {
    format!("/v1/sales/{}/orders/{order}", sale.id)
}

async fn follows_an_order_from_another_front(database: Database) {
    let mut world = World::new(database).await;
    world.set("maintenance.every_ms=200").set(&format!("payments.secrets=acme {SECRET}"));
    let (front, other) = (world.running_as(Part::Front).await, world.running_as(Part::Front).await);
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&front.parts, &sale).await;
    let ada = Buyer::of(&front, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(order.status, 202, "{}", order.text);
    let id = order.order_id();

    // Nobody takes orders from the queue yet. The stream is at the other front.
    let reader = Buyer::of(&other, "ada");
    let mut events = Events::of_order(&reader, &sale, id, None).await;
    assert_eq!(events.status, 200);
    let accepted = events.next().await;
    assert_eq!((accepted.id.as_str(), &accepted.data["status"]), ("1-accepted", &"accepted".into()));
    assert!(accepted.data["durability"].is_string(), "{accepted:?}");

    let worker = world.running_as(Part::Worker).await;
    let persisted = Instant::now();
    let confirmed = events.next().await;
    // Without an announcement the stream would find out after a minute at the earliest, and so below.
    assert!(persisted.elapsed() < Duration::from_secs(10), "{:?}", persisted.elapsed());
    assert_eq!((confirmed.id.as_str(), &confirmed.data["status"]), ("2-confirmed", &"confirmed".into()));
    let read = ada.get(&path_of(&sale, id)).await;
    assert_eq!(confirmed.data, read.json, "an event has what a reading has");

    assert_eq!(event("evt-1", "payment.succeeded", &sale, id).send(&front).await.status, 200);
    let answered = Instant::now();
    let paid = events.next().await;
    assert!(answered.elapsed() < Duration::from_secs(10), "{:?}", answered.elapsed());
    assert_eq!(states(&[paid]), [("3-paid", "paid")]);

    // Who comes back gets what it lacks; with a forged id, everything; each event has the order as it was then.
    let mut resumed = Events::of_order(&ada, &sale, id, Some("2-confirmed")).await;
    assert_eq!(resumed.next().await.id, "3-paid");
    for forged in ["2-paid", "0-accepted", "99999999999999999999-paid", "'; DROP TABLE orders", "-"] {
        let mut forged = Events::of_order(&ada, &sale, id, Some(forged)).await;
        let seen = until_state(&mut forged, "paid").await;
        assert_eq!(
            states(&seen),
            [("1-accepted", "accepted"), ("2-confirmed", "confirmed"), ("3-paid", "paid")]
        );
        let steps = |event: &Event| event.data["history"].as_array().map(Vec::len);
        assert_eq!(seen.iter().map(steps).collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
    }

    let operator = Buyer::operator(&front, Role::Operator);
    let refund = format!("/v1/admin{}:refund", path_of(&sale, id).trim_start_matches("/v1"));
    let refunded = operator.post(&refund, &[], r#"{"reason":"returned"}"#).await;
    assert_eq!(refunded.status, 200, "{}", refunded.text);
    for events in [&mut events, &mut resumed] {
        assert_eq!(events.next().await.id, "4-refunded");
        assert!(events.next_or_end().await.is_none(), "nothing can follow");
    }
    let bearer = format!("Bearer {}", ada.token);
    let headers = [("authorization", bearer.as_str()), ("last-event-id", "4-refunded")];
    let over = request(ada.at, "GET", &format!("{}/events", path_of(&sale, id)), &headers, b"").await;
    assert_eq!((over.status, over.text.as_str()), (204, ""), "an EventSource stops at this");
    worker.stop().await;
    other.stop().await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_followed_from_another_front_on_sqlite() {
    follows_an_order_from_another_front(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_followed_from_another_front_on_postgres() {
    follows_an_order_from_another_front(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_followed_from_another_front_on_mariadb() {
    follows_an_order_from_another_front(Database::Mariadb).await;
}

/// Cancelled in the queue, expired, and refused: each ends its stream.
#[tokio::test(flavor = "multi_thread")]
async fn every_end_is_told_and_ends_the_stream() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=200");
    let front = world.running_as(Part::Front).await;
    let mut sale = sale(&world.name, 3, 1);
    sale.terms.pay_within_s = Some(1);
    world.open_sale(&front.parts, &sale).await;
    let (ada, bob) = (Buyer::of(&front, "ada"), Buyer::of(&front, "bob"));
    let (of_ada, of_bob) = (ada.buy(sale.id.as_str(), "k").await, bob.buy(sale.id.as_str(), "k").await);
    let mut cancelled = Events::of_order(&ada, &sale, of_ada.order_id(), None).await;
    let mut expired = Events::of_order(&bob, &sale, of_bob.order_id(), None).await;
    cancelled.next().await;
    let answer = ada.post(&format!("{}:cancel", path_of(&sale, of_ada.order_id())), &[], "").await;
    assert_eq!(answer.json["status"], "cancelled", "{}", answer.text);
    assert_eq!(cancelled.next().await.id, "2-cancelled");
    assert!(cancelled.next_or_end().await.is_none());

    let worker = world.running_as(Part::Worker).await;
    let seen = until_state(&mut expired, "expired").await;
    assert_eq!(
        states(&seen),
        [("1-accepted", "accepted"), ("2-confirmed", "confirmed"), ("3-expired", "expired")]
    );
    assert!(expired.next_or_end().await.is_none());
    worker.stop().await;
    front.stop().await;
}

/// An order of a sale that Redis has lost, and that nobody rebuilds; and the events of the order, the first of which has
/// been read.
async fn of_a_lost_sale(world: &World, front: &Running, pay_within_s: Option<u32>) -> (Sale, Events) {
    let mut sale = sale(&format!("{}-{}", world.name, pay_within_s.unwrap_or_default()), 3, 1);
    sale.terms.pay_within_s = pay_within_s;
    world.open_sale(&front.parts, &sale).await;
    let ada = Buyer::of(front, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    let mut events = Events::of_order(&ada, &sale, order.order_id(), None).await;
    assert_eq!(events.next().await.id, "1-accepted");
    forget(world, &sale).await;
    (sale, events)
}

/// Its event comes soon after the state was reached. Without an announcement it would come after a minute.
async fn comes_soon(events: &mut Events, id: &str) {
    let event = events.next().await;
    let history = event.data["history"].as_array().expect("a history");
    let reached = history.last().expect("a state")["at"].as_str().expect("a time");
    let reached: Millis = reached.parse().expect("a time");
    assert_eq!(event.id, id);
    assert!(reached.until(Millis::now()) < Duration::from_secs(10), "{event:?}");
}

/// Only their rows know, so the changes must be announced.
#[tokio::test(flavor = "multi_thread")]
async fn what_happens_while_redis_has_lost_the_sale_is_shown_at_once() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=200");
    let front = world.running_as(Part::Front).await;
    let (lasting, mut confirmed) = of_a_lost_sale(&world, &front, None).await;
    let (ending, mut expired) = of_a_lost_sale(&world, &front, Some(2)).await;
    let worker = world.running_as(Part::Worker).await;
    comes_soon(&mut confirmed, "2-confirmed").await;
    assert_eq!(expired.next().await.id, "2-confirmed");
    comes_soon(&mut expired, "3-expired").await;
    for sale in [&lasting, &ending] {
        assert!(front.parts.gate.describe(&sale.id).await.unwrap().is_none(), "nobody has rebuilt it");
    }
    worker.stop().await;
    front.stop().await;
}

/// Nobody takes orders from the queue; a replay writes the row.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_replay_writes_while_redis_has_lost_the_sale_is_shown_at_once() {
    let world = World::new(Database::Sqlite).await;
    let front = world.running_as(Part::Front).await;
    let (_sale, mut events) = of_a_lost_sale(&world, &front, None).await;
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--since", "1h", "--yes"]).await;
    assert_eq!(code, 0, "{out}{err}");
    comes_soon(&mut events, "2-confirmed").await;
    front.stop().await;
}

/// A frozen gate keeps the entry of an order that has its row.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_an_order_of_a_frozen_sale_is_answered_once_it_has_its_row() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("gate.rebuild=manual");
    let front = world.running_as(Part::Front).await;
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&front.parts, &sale).await;
    let ada = Buyer::of(&front, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    let lost = Number { epoch: 1, seq: 1_000_000 };
    assert!(front.parts.gate.freeze_if_behind(&sale.id, lost).await.unwrap());
    let path = format!("{}?wait=10", path_of(&sale, order.order_id()));
    let waits = async {
        let answer = ada.get(&path).await;
        (answer, Instant::now())
    };
    let persists = async {
        let worker = world.running_as(Part::Worker).await;
        let id = id(order.order_id());
        until("the order has its row", Duration::from_secs(30), async || {
            front.parts.store.order(id).await.unwrap()
        })
        .await;
        (worker, Instant::now())
    };
    let ((answer, answered), (worker, persisted)) = tokio::join!(waits, persists);
    assert_eq!(answer.json["status"], "confirmed", "{}", answer.text);
    let took = answered.saturating_duration_since(persisted);
    assert!(took < Duration::from_secs(3), "{took:?}");
    worker.stop().await;
    front.stop().await;
}

/// The row is committed, and the gate's entry still says `accepted`: a buyer has seen the row while Redis was away.
#[tokio::test(flavor = "multi_thread")]
async fn who_knows_more_than_the_gate_is_not_shown_an_older_state() {
    let mut world = World::new(Database::Sqlite).await;
    world.set(&format!("payments.secrets=acme {SECRET}"));
    let front = world.running_as(Part::Front).await;
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&front.parts, &sale).await;
    let ada = Buyer::of(&front, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    let id = order.order_id();
    let ticket = front.parts.gate.in_flight(&sale.id).await.unwrap().remove(0);
    front.parts.store.record(&[claim(&ticket.order, 1)], &|| true).await.unwrap();
    let mut events = Events::of_order(&ada, &sale, id, Some("2-confirmed")).await;
    assert_eq!(events.status, 200);
    let mut forged = Events::of_order(&ada, &sale, id, Some("2-paid")).await;

    let worker = world.running_as(Part::Worker).await;
    until("the order is settled", Duration::from_secs(30), async || {
        front.parts.gate.in_flight(&sale.id).await.unwrap().is_empty().then_some(())
    })
    .await;
    assert_eq!(event("evt-1", "payment.succeeded", &sale, id).send(&front).await.status, 200);
    assert_eq!(states(&[events.next().await]), [("3-paid", "paid")]);
    let seen = until_state(&mut forged, "paid").await;
    assert_eq!(seen[0].id, "1-accepted", "its event was not of this order");
    worker.stop().await;
    front.stop().await;
}

/// A row and its events are read one after the other.
#[test]
fn a_change_between_the_two_readings_is_not_shown() {
    let of = order(&SaleId::parse("shoes").unwrap(), "ada", 1);
    let row = OrderRow {
        order: of,
        status: OrderStatus::Paid,
        failure: None,
        version: 2,
        recorded_at: Millis(2),
        updated_at: Millis(3),
        pay_by: None,
    };
    let event = |from, to, at| OrderEvent { from, to, actor: String::new(), reason: None, at: Millis(at) };
    let paid = event(OrderStatus::Confirmed, OrderStatus::Paid, 3);
    let refunded = event(OrderStatus::Paid, OrderStatus::Refunded, 4);
    let view = OrderView::recorded(row, &[paid, refunded]);
    let shown: Vec<OrderStatus> = (0..view.history.len()).map(|nth| view.at_step(nth).status).collect();
    assert_eq!(shown, [OrderStatus::Accepted, OrderStatus::Confirmed, OrderStatus::Paid]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_follows_the_order_of_another_and_no_buyer_takes_all_the_room() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&running.parts, &sale).await;
    let (ada, eve) = (Buyer::of(&running, "ada"), Buyer::of(&running, "eve"));
    let order = ada.buy(sale.id.as_str(), "k").await;
    let path = format!("{}/events", path_of(&sale, order.order_id()));
    let refused = eve.get(&path).await;
    assert_eq!((refused.status, refused.code()), (404, "order_not_found"));
    assert_eq!(request(ada.at, "GET", &path, &[], b"").await.status, 401);
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(Events::of_order(&ada, &sale, order.order_id(), None).await);
    }
    assert!(streams.iter().all(|stream| stream.status == 200));
    let refused = ada.get(&path).await;
    assert_eq!((refused.status, refused.code()), (503, "too_many_streams"));
    streams.pop();
    until("there is room", Duration::from_secs(30), async || {
        let again = Events::of_order(&ada, &sale, order.order_id(), None).await;
        (again.status == 200).then_some(())
    })
    .await;

    // The front stops: the order goes on, so the stream says when to come back.
    let mut open = streams.remove(0);
    let stopping = tokio::spawn(running.stop());
    let mut rest = Vec::new();
    while let Some(line) = open.line(Duration::from_secs(20)).await {
        rest.push(line);
    }
    assert!(rest.iter().any(|line| line.starts_with("retry: ")), "{rest:?}");
    stopping.await.unwrap();
}
