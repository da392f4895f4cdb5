//! Separate processes die, fail or stall before and after each step of an order, and no unit is lost or sold twice.

use std::time::{Duration, Instant};

use doorbuster::audit::audit;
use doorbuster::domain::{Millis, OrderStatus, Terms};
use doorbuster::fault::{CHANGE_POINTS, POINTS};
use doorbuster::front::{Role, Signer, signature};
use doorbuster::lease::LeaseOptions;
use tokio::sync::Semaphore;

use crate::support::{Answer, Buyer, Database, Doorbuster, World, sale, until};

const WEBHOOK: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// How many cases of all tests together run at once. Each has two processes, which would starve each other on a machine
/// that is busy with something else.
static CASES: Semaphore = Semaphore::const_new(8);

async fn at_once(cases: impl Iterator<Item = impl Future<Output = ()>>) {
    let one = async |case| {
        let _permit = CASES.acquire().await.expect("never closed");
        Box::pin(case).await;
    };
    futures_util::future::join_all(cases.map(one)).await;
}

async fn at_every_change_point(action: &str) {
    at_once(CHANGE_POINTS.iter().map(|point| changes_with_fault(format!("{point}={action}")))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_at_any_point_of_an_orders_life_moves_each_unit_once() {
    at_every_change_point("abort").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_at_any_point_of_an_orders_life_moves_each_unit_once() {
    at_every_change_point("error").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stalling_at_any_point_of_an_orders_life_moves_each_unit_once() {
    at_every_change_point("pause").await;
}

/// One order is cancelled in the queue, one is cancelled after its confirmation, one expires, and one is paid.
/// Units are added and the terms change. A front that dies at the failure point is started again.
async fn changes_with_fault(fault: String) {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=200").set("sweep.every_ms=200").set("sweep.grace_ms=500");
    world.set(&format!("payments.secrets=acme {WEBHOOK}"));
    let parts = world.parts().await;
    let sale = doorbuster::domain::Sale {
        terms: Terms { pay_within_s: Some(8), ..Terms::default() },
        ..sale(&world.name, 3, 1)
    };
    world.open_sale(&parts, &sale).await;
    let tokens = Signer::new(world.config().auth());
    let mut front = Doorbuster::start_with(&world, "front", Some(&fault)).await;
    let mut fired = false;
    // Repeats a request until it succeeds, since a front that dies gives no answer.
    let mut ask = async |user: &str, role: Option<Role>, path: &str, key: &str, body: &str| {
        let (id, sent) = (format!("evt-{key}"), Millis::now().0 / 1000);
        let signature = signature(WEBHOOK, &id, sent, body).expect("signed");
        let sent = sent.to_string();
        let headers = [
            ("idempotency-key", key),
            ("webhook-id", &id),
            ("webhook-timestamp", &sent),
            ("webhook-signature", &signature),
        ];
        until(&format!("{fault}: {path}"), Duration::from_secs(90), async || {
            fired |= front.has_logged("failure point reached");
            if front.has_ended() {
                front = Doorbuster::start(&world, "front").await;
            }
            let at = if role.is_some() { front.operations } else { front.buyers.expect("a front") };
            let buyer = Buyer::with(at, &tokens, user, role);
            let answer = buyer.try_post(path, &headers, body).await?;
            (answer.status < 300 || answer.code() == "invalid_transition").then_some((answer, fired))
        })
        .await
    };
    let orders = format!("/v1/sales/{}/orders", sale.id);
    let cancel = |order: &Answer| format!("{orders}/{}:cancel", order.order_id());
    let (queued, _) = ask("eve", None, &orders, "k", "").await;
    ask("eve", None, &cancel(&queued), "k", "").await;
    let _worker = Doorbuster::start(&world, "worker").await;
    let (confirmed, _) = ask("ada", None, &orders, "k", "").await;
    let (unpaid, _) = ask("bob", None, &orders, "k", "").await;
    let (paid, _) = ask("dora", None, &orders, "k", "").await;
    let data = serde_json::json!({ "sale_id": sale.id, "order_id": paid.order_id() });
    let event = serde_json::json!({ "type": "payment.succeeded", "data": data }).to_string();
    let status = async |order: &Answer| {
        let row = parts.store.order(order.order_id().parse().unwrap()).await.unwrap();
        row.map(|row| row.status)
    };
    until(&format!("{fault}: ada's order has a row"), Duration::from_secs(60), async || {
        // Repeat the click: this also restarts a front that has died meanwhile.
        ask("ada", None, &orders, "k", "").await;
        status(&confirmed).await
    })
    .await;
    // If the order has expired before, the answer is 409, and it has ended as well.
    ask("ada", None, &cancel(&confirmed), "k", "").await;
    let operator = Some(Role::Operator);
    let sale_path = format!("/v1/admin/sales/{}", sale.id);
    ask("op", operator, &format!("{sale_path}:restock"), "r", r#"{"sku":"unit","units":2}"#).await;
    let books = until(&format!("{fault}: everything has ended"), Duration::from_secs(90), async || {
        // These requests also restart the front.
        let change = format!("{sale_path}:change");
        let (payment, _) = ask("dora", None, "/v1/payments/callback/acme", "paid", &event).await;
        let (_, fired) = ask("op", operator, &change, "c", r#"{"limit_per_user":2}"#).await;
        let expired = status(&unpaid).await == Some(OrderStatus::Expired);
        Some(audit(&parts.gate, &parts.store, &sale.id).await.unwrap())
            .filter(|books| expired && fired && books.is_at_rest())
            // The payment came in time, or bought a unit again.
            .filter(|_| ["applied", "retaken"].iter().any(|state| payment.json["state"] == **state))
    })
    .await;
    assert!(books.balances(), "{fault}: {books:?}");
    let item = &books.items[0];
    assert_eq!((books.live_orders, books.unpaid_orders), (1, 0), "{fault}: {books:?}");
    assert_eq!((item.stock, item.left), (5, 4), "{fault}: {books:?}");
    let gate = parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!(gate.limit_per_user, 2, "{fault}");
    for order in [&queued, &confirmed, &unpaid] {
        let events = parts.store.history(order.order_id().parse().unwrap()).await.unwrap();
        assert_eq!(events.len(), 1, "{fault}: the order ends once: {events:?}");
    }
}

async fn at_every_point(action: &str) {
    at_once(POINTS.iter().map(|point| orders_with_fault(format!("{point}={action}")))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_at_any_point_loses_nothing_and_sells_nothing_twice() {
    at_every_point("abort").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_at_any_point_loses_nothing_and_sells_nothing_twice() {
    at_every_point("error").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stalling_for_longer_than_a_lease_at_any_point_loses_nothing_and_sells_nothing_twice() {
    at_every_point("pause").await;
}

/// Three units and four buyers. A process that dies at the failure point is started again.
async fn orders_with_fault(fault: String) {
    let step = fault.split('.').next().expect("a step");
    let in_front = ["script", "answer", "publish", "confirm"].contains(&step);
    let mut world = World::new(if in_front { Database::Sqlite } else { Database::Postgres }).await;
    world
        .set("sweep.grace_ms=500")
        .set("sweep.every_ms=200")
        .set("sweep.spacing_ms=500")
        .set("sweep.overtaken_after_ms=1000")
        .set("worker.lease_ms=2000");
    let parts = world.parts().await;
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&parts, &sale).await;
    let armed = |here: bool| here.then_some(fault.as_str());
    let mut front = Doorbuster::start_with(&world, "front", armed(in_front)).await;
    let mut worker = Doorbuster::start_with(&world, "worker", armed(!in_front)).await;
    let (mut fired, mut second) = (false, None);
    let stalls = fault.ends_with("=pause");
    let tokens = Signer::new(world.config().auth());

    let mut answers: Vec<Option<Answer>> = vec![None; 4];
    let books = until(&format!("{fault}: every order has ended"), Duration::from_secs(90), async || {
        // Once the first worker stalls, a second one may take over its deliveries.
        if !in_front && stalls && fired && second.is_none() {
            second = Some(Doorbuster::start(&world, "worker").await);
        }
        fired |= front.has_logged("failure point reached") || worker.has_logged("failure point reached");
        if front.has_ended() {
            front = Doorbuster::start(&world, "front").await;
        }
        if worker.has_ended() {
            worker = Doorbuster::start(&world, "worker").await;
        }
        for (nth, last) in answers.iter_mut().enumerate() {
            let buyer = Buyer::with(front.buyers.expect("a front"), &tokens, &format!("user{nth}"), None);
            let Some(answer) = buyer.try_buy(sale.id.as_str(), "k").await else { continue };
            if answer.status >= 500 {
                continue;
            }
            if let Some(before) = last {
                assert_eq!(before.order_id(), answer.order_id(), "{fault}: {}", answer.text);
                assert_eq!(before.code(), answer.code(), "{fault}: {}", answer.text);
            }
            *last = Some(answer);
        }
        let all_answered = answers.iter().all(Option::is_some);
        Some(audit(&parts.gate, &parts.store, &sale.id).await.unwrap())
            .filter(|books| all_answered && fired && books.is_at_rest())
    })
    .await;
    assert!(books.balances(), "{fault}: {books:?}");
    assert_eq!((books.live_orders, books.failed_orders), (3, 0), "{fault}: {books:?}");
    let accepted = answers.iter().flatten().filter(|answer| !answer.order_id().is_empty()).count();
    assert_eq!(accepted, 3, "{fault}: {answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_lease_is_held_until_the_commit() {
    for _ in 0..5 {
        if let Some(lease_is_free) = lease_is_free_before_the_commit().await {
            assert!(!lease_is_free, "the user's lease is free before the commit");
            return;
        }
    }
    panic!("five times out of five the servers took longer than a lease lasts");
}

/// Can another process lease a user whose order is about to be committed? `None` if the test took so long
/// that the lease may have expired.
async fn lease_is_free_before_the_commit() -> Option<bool> {
    let world = World::new(Database::Sqlite).await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&parts, &sale).await;
    let front = Doorbuster::start(&world, "front").await;
    // Otherwise the order would wait in the outbox first.
    until("the front can publish", Duration::from_secs(60), async || {
        front.has_logged("publisher connected").then_some(())
    })
    .await;
    let buyer = Buyer::with(front.buyers.expect("a front"), &Signer::new(world.config().auth()), "ada", None);
    let accepted = until("the order is accepted", Duration::from_secs(60), async || {
        buyer.try_buy(sale.id.as_str(), "k").await.filter(|answer| answer.status == 202)
    })
    .await;
    // No lease is older than its worker.
    let begun = Instant::now();
    let worker = Doorbuster::start_with(&world, "worker", Some("commit.before=pause")).await;
    until("the worker is about to commit", Duration::from_secs(60), async || {
        worker.has_logged("failure point reached").then_some(())
    })
    .await;
    let options = LeaseOptions::lasting(Duration::from_millis(50));
    let taken = parts.leases.take(sale.id.as_str(), ["ada"], options).await;
    let row = parts.store.order(accepted.order_id().parse().unwrap()).await;
    if begun.elapsed() > world.config().pace().lease - Duration::from_millis(500) {
        return None;
    }
    assert!(row.ok()?.is_none(), "the worker pauses before the commit");
    Some(taken.ok()?.held[0])
}
