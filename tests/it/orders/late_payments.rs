//! Payments for orders that have ended: each buys a unit again or is kept for refund.

use doorbuster::domain::{ActRequest, LatePayment, OrderStatus, Terms};
use doorbuster::front::Role;
use doorbuster::store::PaymentState;

use super::payments::{LONG, buy_one, event, status, until_status, with_open_sale};
use crate::support::{Buyer, at_rest, id, run, sale, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_late_payment_buys_the_unit_again_if_one_is_left() {
    let (world, running, sale) = with_open_sale(Terms::default()).await;
    let order = buy_one(&running, &sale, "ada").await;
    let cancel = format!("/v1/sales/{}/orders/{order}:cancel", sale.id);
    assert_eq!(Buyer::of(&running, "ada").post(&cancel, &[], "").await.status, 200);
    let paid = event("evt-1", "payment.succeeded", &sale, &order);
    let ended = until("the payment is for a new order", LONG, async || {
        Some(paid.send(&running).await).filter(|answer| answer.json["state"] == "retaken")
    })
    .await;
    let new = ended.json["new_order_id"].as_str().expect("an order").to_owned();
    assert_ne!(new, order);
    assert_eq!(
        status(&running, &order).await,
        Some(OrderStatus::Cancelled),
        "the cancelled order stays cancelled"
    );
    assert_eq!(status(&running, &new).await, Some(OrderStatus::Paid));
    at_rest(&running, &sale).await;
    // The provider knows only the first order, so its refund applies to the second.
    let refunded = event("evt-2", "payment.refunded", &sale, &order).send(&running).await;
    assert_eq!(refunded.json["state"], "applied", "{}", refunded.text);
    assert_eq!(status(&running, &new).await, Some(OrderStatus::Refunded));

    // With no unit left the payment is kept for refund, and operators see why.
    let order = buy_one(&running, &sale, "carl").await;
    let cancel = format!("/v1/sales/{}/orders/{order}:cancel", sale.id);
    assert_eq!(Buyer::of(&running, "carl").post(&cancel, &[], "").await.status, 200);
    buy_one(&running, &sale, "dora").await;
    buy_one(&running, &sale, "emil").await;
    let late = event("evt-3", "payment.succeeded", &sale, &order);
    let answer = until("the payment is late", LONG, async || {
        Some(late.send(&running).await).filter(|answer| answer.json["state"] != "pending")
    })
    .await;
    assert_eq!(answer.json["state"], "late", "{}", answer.text);
    let (code, out, err) = run(Some(&world), &["payment", "list"]).await;
    assert!(code == 0 && out.contains("evt-3") && out.contains("the item is sold out"), "{out}{err}");
    let refunded = event("evt-4", "payment.refunded", &sale, &order).send(&running).await;
    assert_eq!(refunded.json["state"], "applied", "{}", refunded.text);
    assert!(running.parts.store.payments(PaymentState::Late, 10).await.unwrap().is_empty());
    assert_eq!(late.send(&running).await.json["state"], "refunded");
    at_rest(&running, &sale).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_waits_for_a_paused_sale_is_tried_when_it_is_resumed() {
    let (_world, running, sale) = with_open_sale(Terms::default()).await;
    let order = buy_one(&running, &sale, "ada").await;
    let cancel = format!("/v1/sales/{}/orders/{order}:cancel", sale.id);
    assert_eq!(Buyer::of(&running, "ada").post(&cancel, &[], "").await.status, 200);
    let operator = Buyer::operator(&running, Role::Operator);
    let act = async |verb: &str| {
        let path = format!("/v1/admin/sales/{}:{verb}", sale.id);
        let answer = operator.post(&path, &[("idempotency-key", verb)], "{}").await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    };
    act("pause").await;
    let waits = event("evt-1", "payment.succeeded", &sale, &order).send(&running).await;
    assert_eq!((waits.status, waits.json["state"].as_str()), (200, Some("pending")), "{}", waits.text);
    assert_eq!(waits.json["detail"], "it waits, and is applied by itself", "the reason is for operators");
    // As after a long pause.
    let store = &running.parts.store;
    let payment = store.payment("acme", "evt-1").await.unwrap().expect("recorded");
    assert!(payment.detail.as_ref().is_some_and(|why| why.contains("takes no orders now")), "{payment:?}");
    assert!(store.postpone_payment(&payment, 10 * LONG, None, "the sale is paused").await.unwrap());
    act("resume").await;
    until("the payment is for a new order", LONG, async || {
        let payment = store.payment("acme", "evt-1").await.unwrap()?;
        (payment.state == PaymentState::Retaken).then_some(())
    })
    .await;
    at_rest(&running, &sale).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_payment_is_kept_for_refund_if_the_terms_say_so() {
    let terms = Terms { late_payment: LatePayment::Refund, pay_within_s: Some(1), ..Terms::default() };
    let (_world, running, sale) = with_open_sale(terms).await;
    let ada = Buyer::of(&running, "ada");
    let order = buy_one(&running, &sale, "ada").await;
    until_status(&running, &order, OrderStatus::Expired).await;
    let answer = event("evt-1", "payment.succeeded", &sale, &order).send(&running).await;
    assert_eq!((answer.status, answer.json["state"].as_str()), (200, Some("late")), "{}", answer.text);
    let read = ada.get(&format!("/v1/sales/{}/orders/{order}", sale.id)).await;
    assert!(read.json["pay_by"].is_null() && read.json["status"] == "expired", "{}", read.text);
    assert_eq!(read.json["payments"][0]["state"], "late", "the buyer sees it, too: {}", read.text);
    assert_eq!(
        status(&running, &order).await,
        Some(OrderStatus::Expired),
        "the payment does not revive the order"
    );
    at_rest(&running, &sale).await;
    running.stop().await;
}

/// Both wait for a paused sale, and are tried at once when it is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_late_payments_of_an_order_only_one_takes_a_unit_again() {
    let (world, running, _) = with_open_sale(Terms::default()).await;
    let sale = sale(&format!("{}b", world.name), 4, 2);
    world.open_sale(&running.parts, &sale).await;
    let order = buy_one(&running, &sale, "ada").await;
    let cancel = format!("/v1/sales/{}/orders/{order}:cancel", sale.id);
    assert_eq!(Buyer::of(&running, "ada").post(&cancel, &[], "").await.status, 200);
    let by = ActRequest::by("ada");
    running.control.pause(&sale.id, None, &by).await.unwrap();
    for nth in 1..=2 {
        let paid = event(&format!("evt-{nth}"), "payment.succeeded", &sale, &order);
        assert_eq!(paid.send(&running).await.json["state"], "pending");
    }
    running.control.resume(&sale.id, &by).await.unwrap();
    let store = &running.parts.store;
    let states = until("both have ended", LONG, async || {
        let payments = store.payments_of(&[order.parse().unwrap()]).await.unwrap();
        let mut states: Vec<_> = payments.values().flatten().map(|payment| payment.state.as_str()).collect();
        states.sort_unstable();
        (!states.contains(&"pending")).then_some(states)
    })
    .await;
    assert_eq!(states, ["late", "retaken"]);
    for nth in 1..=2 {
        let back = event(&format!("ref-{nth}"), "payment.refunded", &sale, &order).send(&running).await;
        assert_eq!(back.json["state"], "applied", "{}", back.text);
    }
    let orders = store.orders_of(&sale.id, &id("ada"), None, 100).await.unwrap();
    let statuses: Vec<_> = orders.iter().map(|row| row.status).collect();
    assert!(statuses.len() == 2 && !statuses.contains(&OrderStatus::Paid), "{statuses:?}");
    at_rest(&running, &sale).await;
    running.stop().await;
}
