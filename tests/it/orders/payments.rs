//! Payment callbacks: only genuine ones count, each counts once, and none is dropped.

use std::net::SocketAddr;
use std::time::Duration;

use doorbuster::domain::{Act, ActRequest, Millis, OrderStatus, Sale, Terms};
use doorbuster::front::{Role, signature};
use doorbuster::process::{Role as Part, Running};
use doorbuster::store::{Change, Changed, Payment, PaymentKind, PaymentState, Purged};

use crate::support::{Answer, Buyer, Database, World, at_rest, request, sale, until};

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEXT_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
pub const LONG: Duration = Duration::from_secs(40);

/// A front and a worker that know the provider `acme`, and an open sale of two units with these terms.
pub async fn with_open_sale(terms: Terms) -> (World, Running, Sale) {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=200").set(&format!("payments.secrets=acme {SECRET} {NEXT_SECRET}"));
    let running = world.running().await;
    let sale = Sale { terms, ..sale(&world.name, 2, 1) };
    world.open_sale(&running.parts, &sale).await;
    (world, running, sale)
}

/// A payment provider's event.
#[derive(Clone)]
pub struct Event {
    id: String,
    body: String,
    sent: i64,
    secret: &'static str,
}

pub fn event(id: &str, kind: &str, sale: &Sale, order: &str) -> Event {
    let body = serde_json::json!({ "type": kind, "data": { "sale_id": sale.id, "order_id": order } });
    Event { id: id.into(), body: body.to_string(), sent: Millis::now().0 / 1000, secret: SECRET }
}

impl Event {
    pub async fn send(&self, running: &Running) -> Answer {
        self.send_to(running.buyers.expect("a front")).await
    }

    pub async fn send_to(&self, at: SocketAddr) -> Answer {
        let sent = self.sent.to_string();
        let signature = signature(self.secret, &self.id, self.sent, &self.body).expect("signed");
        self.send_signed(at, &sent, &signature).await
    }

    async fn send_signed(&self, at: SocketAddr, sent: &str, signature: &str) -> Answer {
        let headers =
            [("webhook-id", self.id.as_str()), ("webhook-timestamp", sent), ("webhook-signature", signature)];
        request(at, "POST", "/v1/payments/callback/acme", &headers, self.body.as_bytes()).await
    }
}

pub async fn status(running: &Running, order: &str) -> Option<OrderStatus> {
    running.parts.store.order(order.parse().unwrap()).await.unwrap().map(|row| row.status)
}

pub async fn until_status(running: &Running, order: &str, wanted: OrderStatus) {
    until(&format!("the order is {wanted}"), LONG, async || {
        (status(running, order).await == Some(wanted)).then_some(())
    })
    .await;
}

/// An order that has a row. It may already have expired.
pub async fn buy_one(running: &Running, sale: &Sale, user: &str) -> String {
    let order = Buyer::of(running, user).buy(sale.id.as_str(), "k").await;
    assert_eq!(order.status, 202, "{}", order.text);
    until("the order has a row", LONG, async || status(running, order.order_id()).await).await;
    order.order_id().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_genuine_payment_counts_once_and_a_forged_one_not_at_all() {
    let (_world, running, sale) = with_open_sale(Terms::default()).await;
    let order = buy_one(&running, &sale, "ada").await;
    let paid = event("evt-1", "payment.succeeded", &sale, &order);
    let now = paid.sent.to_string();
    let good = signature(SECRET, &paid.id, paid.sent, &paid.body).unwrap();
    let other = format!("whsec_{}", "A".repeat(32));
    let foreign = signature(&other, &paid.id, paid.sent, &paid.body).unwrap();
    let stale = paid.sent - 600;
    let stale_signature = signature(SECRET, &paid.id, stale, &paid.body).unwrap();
    for (what, sent, signature) in [
        ("of another secret", now.as_str(), foreign.as_str()),
        ("of another time", &(paid.sent + 1).to_string(), &good),
        ("too old", &stale.to_string(), &stale_signature),
        ("of another version", &now, &good.replace("v1,", "v2,")),
        ("not base64", &now, "v1,***"),
        ("empty", &now, ""),
    ] {
        let answer = paid.send_signed(running.buyers.unwrap(), sent, signature).await;
        assert_eq!((answer.status, answer.code()), (401, "bad_signature"), "{what}: {}", answer.text);
    }
    let changed = Event { body: paid.body.replace("succeeded", "refunded"), ..paid.clone() };
    assert_eq!(changed.send_signed(running.buyers.unwrap(), &now, &good).await.status, 401, "another body");
    assert_eq!(status(&running, &order).await, Some(OrderStatus::Confirmed), "nothing has changed");

    // While a secret is being replaced, the first of several signatures may belong to the other secret.
    let both = format!("{foreign} {good}");
    let answer = paid.send_signed(running.buyers.unwrap(), &now, &both).await;
    assert_eq!((answer.status, answer.json["state"].as_str()), (200, Some("applied")), "{}", answer.text);
    assert_eq!(status(&running, &order).await, Some(OrderStatus::Paid));
    for _ in 0..2 {
        let again = paid.send(&running).await;
        assert_eq!((again.status, again.json["state"].as_str()), (200, Some("applied")), "{}", again.text);
    }
    let events = running.parts.store.history(order.parse().unwrap()).await.unwrap();
    assert_eq!(events.len(), 1, "paid once: {events:?}");
    assert_eq!((events[0].actor.as_str(), events[0].reason.as_deref()), ("payment acme", Some("evt-1")));

    let reused = Event { id: "evt-1".into(), ..event("x", "payment.refunded", &sale, &order) };
    let answer = reused.send(&running).await;
    assert_eq!((answer.status, answer.code()), (422, "event_reused"), "{}", answer.text);
    let ignored = event("evt-2", "payment.pending", &sale, &order).send(&running).await;
    assert_eq!((ignored.status, ignored.json["state"].as_str()), (200, Some("ignored")), "{}", ignored.text);
    let customer = "{\"type\":\"customer.created\",\"data\":{\"id\":\"c_1\"}}";
    let other = Event { body: customer.into(), ..event("evt-5", "", &sale, &order) }.send(&running).await;
    assert_eq!((other.status, other.json["state"].as_str()), (200, Some("ignored")), "{}", other.text);
    let malformed = Event { body: "{\"type\":1}".into(), ..event("evt-3", "", &sale, &order) };
    assert_eq!(malformed.send(&running).await.code(), "malformed");
    let next = Event { secret: NEXT_SECRET, ..event("evt-4", "payment.refunded", &sale, &order) };
    assert_eq!(next.send(&running).await.json["state"], "applied", "signed with the next secret");
    assert_eq!(status(&running, &order).await, Some(OrderStatus::Refunded));
    let at = running.buyers.unwrap();
    let unknown = request(at, "POST", "/v1/payments/callback/other", &[], b"{}").await;
    assert_eq!((unknown.status, unknown.code()), (401, "bad_signature"), "{}", unknown.text);
    at_rest(&running, &sale).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_arrives_before_its_orders_row_waits_for_it() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=200").set(&format!("payments.secrets=acme {SECRET}"));
    let front = world.running_as(Part::Front).await;
    let sale = sale(&world.name, 2, 1);
    world.open_sale(&front.parts, &sale).await;
    let order = Buyer::of(&front, "ada").buy(sale.id.as_str(), "k").await;
    let paid = event("evt-1", "payment.succeeded", &sale, order.order_id());
    let answer = paid.send(&front).await;
    assert_eq!((answer.status, answer.json["state"].as_str()), (200, Some("pending")), "{}", answer.text);
    let worker = world.running_as(Part::Worker).await;
    until_status(&front, order.order_id(), OrderStatus::Paid).await;
    until("the event is applied", LONG, async || {
        (paid.send(&front).await.json["state"] == "applied").then_some(())
    })
    .await;
    worker.stop().await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_for_another_users_order_changes_nothing() {
    let (_world, running, sale) = with_open_sale(Terms::default()).await;
    let order = buy_one(&running, &sale, "ada").await;
    let mut paid = event("evt-1", "payment.succeeded", &sale, &order);
    paid.body = paid.body.replace("\"order_id\"", "\"user_id\":\"bob\",\"order_id\"");
    for _ in 0..2 {
        let answer = paid.send(&running).await;
        assert_eq!((answer.status, answer.code()), (422, "payment_mismatch"), "{}", answer.text);
    }
    let mut elsewhere = event("evt-2", "payment.succeeded", &sale, &order);
    elsewhere.body = elsewhere.body.replace(sale.id.as_str(), "elsewhere");
    assert_eq!(elsewhere.send(&running).await.code(), "payment_mismatch");
    assert_eq!(status(&running, &order).await, Some(OrderStatus::Confirmed));
    // Bob's refund returns bob's money, not what the order's own buyer paid.
    assert_eq!(
        event("own", "payment.succeeded", &sale, &order).send(&running).await.json["state"],
        "applied"
    );
    let mut back = event("ref-1", "payment.refunded", &sale, &order);
    back.body = back.body.replace("\"order_id\"", "\"user_id\":\"bob\",\"order_id\"");
    assert_eq!(back.send(&running).await.json["state"], "applied");
    let mut more = back.clone();
    more.id = "ref-2".into();
    assert_eq!(more.send(&running).await.code(), "payment_mismatch", "bob paid only once");
    assert_eq!(status(&running, &order).await, Some(OrderStatus::Paid));
    // The mismatched events are not dropped: an operator sees them.
    let listed = Buyer::operator(&running, Role::Viewer).get("/v1/admin/payments?state=mismatch").await;
    assert_eq!(listed.json["payments"].as_array().map(Vec::len), Some(2), "{}", listed.text);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_payment_for_an_order_counts_as_late() {
    let (_world, running, sale) = with_open_sale(Terms::default()).await;
    let order = buy_one(&running, &sale, "ada").await;
    let copies = (0..8).map(|_| event("evt-1", "payment.succeeded", &sale, &order));
    let sent = copies.map(|copy| {
        let running = &running;
        async move { copy.send(running).await }
    });
    for answer in futures_util::future::join_all(sent).await {
        // A copy that arrives while the event is being recorded gets a 503 and may be sent again.
        assert!([200, 503].contains(&answer.status), "{}", answer.text);
    }
    let first = event("evt-1", "payment.succeeded", &sale, &order).send(&running).await;
    assert_eq!(first.json["state"], "applied", "{}", first.text);
    let second = event("evt-2", "payment.succeeded", &sale, &order).send(&running).await;
    assert_eq!(second.json["state"], "late", "{}", second.text);
    assert_eq!(running.parts.store.history(order.parse().unwrap()).await.unwrap().len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unpaid_order_never_expires_early_and_its_unit_is_sold_again() {
    let (_world, running, sale) = with_open_sale(Terms { pay_within_s: Some(8), ..Terms::default() }).await;
    let (first, second) = (buy_one(&running, &sale, "ada").await, buy_one(&running, &sale, "bob").await);
    let row = running.parts.store.order(first.parse().unwrap()).await.unwrap().expect("a row");
    let pay_by = row.recorded_at.plus(Duration::from_secs(8));
    assert_eq!(row.pay_by, Some(pay_by), "counted from the confirmation");
    let read = Buyer::of(&running, "ada").get(&format!("/v1/sales/{}/orders/{first}", sale.id)).await;
    assert_eq!(read.json["pay_by"], pay_by.to_string(), "{}", read.text);
    assert_eq!(event("evt-1", "payment.succeeded", &sale, &second).send(&running).await.status, 200);
    until_status(&running, &first, OrderStatus::Expired).await;
    let ended = running.parts.store.history(first.parse().unwrap()).await.unwrap();
    assert!(ended[0].at >= pay_by, "never early: {ended:?}");
    assert_eq!(ended[0].actor, "deadline");
    let carl = until("the unit is on sale again", LONG, async || {
        Some(Buyer::of(&running, "carl").buy(sale.id.as_str(), "k").await)
            .filter(|answer| answer.status == 202)
    })
    .await;
    until_status(&running, carl.order_id(), OrderStatus::Expired).await;
    assert_eq!(status(&running, &second).await, Some(OrderStatus::Paid), "a paid order does not expire");
    at_rest(&running, &sale).await;
    running.stop().await;
}

/// The payment cannot be applied, and the deadline passes. The buyer paid in time.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_with_a_pending_payment_does_not_expire() {
    let (_world, running, sale) = with_open_sale(Terms { pay_within_s: Some(8), ..Terms::default() }).await;
    let (first, other) = (buy_one(&running, &sale, "ada").await, buy_one(&running, &sale, "bob").await);
    let paid = event("evt-1", "payment.succeeded", &sale, &first);
    // Simulates an event that was recorded before every later step failed.
    let recorded = Payment {
        provider: "acme".into(),
        event_id: paid.id.clone(),
        kind: PaymentKind::Paid,
        sale: sale.id.clone(),
        order: first.parse().unwrap(),
        user: None,
        state: PaymentState::Pending,
        new_order: None,
        detail: None,
        received_at: Millis::now(),
    };
    running.parts.store.receive_payment(&recorded).await.unwrap();
    let later = Duration::from_secs(3_600);
    assert!(running.parts.store.postpone_payment(&recorded, later, None, "no server").await.unwrap());
    until_status(&running, &other, OrderStatus::Expired).await;
    let change = Change {
        id: first.parse().unwrap(),
        act: Act::Expire,
        asked: ActRequest::by("deadline"),
        fence: i64::MAX / 2,
    };
    let refused = running.parts.store.change(&[change], &|| true).await.unwrap();
    assert!(matches!(&refused[..], [Changed::Refused(_)]), "{refused:?}");
    assert_eq!(status(&running, &first).await, Some(OrderStatus::Confirmed));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refund_returns_one_payment_and_late_payments_go_first() {
    let (_world, running, sale) = with_open_sale(Terms::default()).await;
    let order = buy_one(&running, &sale, "ada").await;
    for (id, state) in [("evt-1", "applied"), ("evt-2", "late"), ("evt-3", "late")] {
        let answer = event(id, "payment.succeeded", &sale, &order).send(&running).await;
        assert_eq!(answer.json["state"], state, "{}", answer.text);
    }
    // Each refund comes in many copies at once, as from a provider that gets no answer.
    for (id, late) in [("ref-1", 1), ("ref-2", 0)] {
        let refund = event(id, "payment.refunded", &sale, &order);
        let copies = futures_util::future::join_all((0..6).map(|_| refund.send(&running))).await;
        assert!(copies.iter().any(|answer| answer.json["state"] == "applied"), "{copies:?}");
        let owed = running.parts.store.payments(PaymentState::Late, 10).await.unwrap();
        assert_eq!(owed.len(), late, "{owed:?}");
        assert_eq!(
            status(&running, &order).await,
            Some(OrderStatus::Paid),
            "one payment still covers the order"
        );
    }
    let last = event("ref-3", "payment.refunded", &sale, &order).send(&running).await;
    assert_eq!(last.json["state"], "applied", "{}", last.text);
    assert_eq!(status(&running, &order).await, Some(OrderStatus::Refunded));
    at_rest(&running, &sale).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_arrives_before_its_payment_leaves_nothing_bought() {
    let (_world, running, sale) = with_open_sale(Terms::default()).await;
    let order = buy_one(&running, &sale, "ada").await;
    let cancel = format!("/v1/sales/{}/orders/{order}:cancel", sale.id);
    assert_eq!(Buyer::of(&running, "ada").post(&cancel, &[], "").await.status, 200);
    let refund = event("ref-1", "payment.refunded", &sale, &order);
    assert_eq!(refund.send(&running).await.json["state"], "pending");
    let paid = event("evt-1", "payment.succeeded", &sale, &order);
    assert_eq!(paid.send(&running).await.json["state"], "refunded");
    assert_eq!(refund.send(&running).await.json["state"], "applied");
    let orders =
        running.parts.store.orders_of(&sale.id, &crate::support::id("ada"), None, 100).await.unwrap();
    assert_eq!(orders.len(), 1, "refunded money buys nothing: {orders:?}");
    at_rest(&running, &sale).await;
    running.stop().await;
}

/// Otherwise the buyer would read `paid`, and a shop would ship, until the refund is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_arrives_before_its_payment_leaves_a_live_order_unpaid() {
    let (_world, running, sale) = with_open_sale(Terms::default()).await;
    let order = buy_one(&running, &sale, "ada").await;
    let refund = event("ref-1", "payment.refunded", &sale, &order);
    assert_eq!(refund.send(&running).await.json["state"], "pending");
    // As after many tries.
    let store = &running.parts.store;
    let waiting = store.payment("acme", "ref-1").await.unwrap().expect("recorded");
    assert!(store.postpone_payment(&waiting, 10 * LONG, None, "no payment is known yet").await.unwrap());
    let paid = event("evt-1", "payment.succeeded", &sale, &order);
    let answer = paid.send(&running).await;
    assert_eq!(answer.json["state"], "refunded", "{}", answer.text);
    assert_eq!(refund.send(&running).await.json["state"], "applied");
    assert_eq!(status(&running, &order).await, Some(OrderStatus::Confirmed));
    // The next payment pays for it.
    let paid = event("evt-2", "payment.succeeded", &sale, &order);
    assert_eq!(paid.send(&running).await.json["state"], "applied");
    assert_eq!(status(&running, &order).await, Some(OrderStatus::Paid));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_deletes_no_payment_that_is_owed() {
    let (_world, running, sale) = with_open_sale(Terms::default()).await;
    let order = buy_one(&running, &sale, "ada").await;
    let by = ActRequest::by("ada");
    // It names an order of this sale, and another sale.
    let mut elsewhere = event("evt-1", "payment.succeeded", &sale, &order);
    elsewhere.body = elsewhere.body.replace(sale.id.as_str(), "elsewhere");
    assert_eq!(elsewhere.send(&running).await.code(), "payment_mismatch");
    running.control.close(&sale.id, &by).await.unwrap();
    at_rest(&running, &sale).await;
    running.control.archive(&sale.id, &by).await.unwrap();
    let refused = running.control.purge(&sale.id, &by).await.expect_err("money is owed").to_string();
    assert!(refused.contains("1 payments are pending or must be refunded"), "{refused}");
    // A payment may also come while the orders are being deleted.
    let store = &running.parts.store;
    assert_eq!(store.purge_sale(&sale.id).await.unwrap(), Purged { orders: 0, owed: 1 });
    let mut back = event("ref-1", "payment.refunded", &sale, &order);
    back.body = back.body.replace(sale.id.as_str(), "elsewhere");
    assert_eq!(back.send(&running).await.json["state"], "applied");
    running.control.purge(&sale.id, &by).await.unwrap();
    assert_eq!(status(&running, &order).await, None);
    running.stop().await;
}
