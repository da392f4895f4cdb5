//! A payment, cancellation or refund that was answered is in the order log, too.

use doorbuster::domain::{OrderStatus, Sale, Terms};
use doorbuster::front::Role as OperatorRole;
use doorbuster::process::Role;
use doorbuster::rehearsal::chaos::Weather;

use super::payments::{LONG, SECRET, buy_one, event, status, until_status};
use crate::support::{
    Backup, Buyer, Database, Doorbuster, World, at_rest, behind_proxy, everything_is_witnessed, run, sale,
    try_request, until,
};

/// The database is restored to the moment before the payment, with nothing stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_was_answered_outlives_the_databases_last_commits() {
    let mut world = World::new(Database::Postgres).await;
    // The log writer must not be faster than the loss.
    world.set("maintenance.every_ms=60000").set(&format!("payments.secrets=acme {SECRET}"));
    let running = world.running().await;
    let sale =
        Sale { terms: Terms { pay_within_s: Some(3_600), ..Terms::default() }, ..sale(&world.name, 2, 1) };
    world.open_sale(&running.parts, &sale).await;
    let order = buy_one(&running, &sale, "ada").await;
    let (paid, other) = (
        event("evt-1", "payment.succeeded", &sale, &order),
        event("evt-2", "payment.succeeded", &sale, &order),
    );
    let database = Backup::of(&world);
    database.make().await;
    assert_eq!(paid.send(&running).await.json["state"], "applied");
    assert_eq!(other.send(&running).await.json["state"], "late");
    database.restore().await;
    until("the loss is noticed", LONG, async || running.parts.store.behind()).await;
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert_eq!(code, 0, "{out}{err}");
    until_status(&running, &order, OrderStatus::Paid).await;
    for (event, state) in [(paid, "applied"), (other, "late")] {
        let again = event.send(&running).await;
        assert_eq!((again.status, again.json["state"].as_str()), (200, Some(state)), "{}", again.text);
    }
    let history = running.parts.store.history(order.parse().unwrap()).await.unwrap();
    assert_eq!(history.len(), 1, "paid once: {history:?}");
    at_rest(&running, &sale).await;
    running.stop().await;
}

/// The front dies right after its answer, and the database loses the payment with it. Nothing else has seen it.
#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_is_lost_with_the_front_that_answered_it_is_missed() {
    let mut world = World::new(Database::Postgres).await;
    world.set(&format!("payments.secrets=acme {SECRET}"));
    let running = world.running().await;
    let sale =
        Sale { terms: Terms { pay_within_s: Some(3_600), ..Terms::default() }, ..sale(&world.name, 2, 1) };
    world.open_sale(&running.parts, &sale).await;
    let order = buy_one(&running, &sale, "ada").await;
    at_rest(&running, &sale).await;
    everything_is_witnessed(&running, &sale).await;
    running.stop().await;
    let database = Backup::of(&world);
    database.make().await;

    let mut front = Doorbuster::start(&world, "front").await;
    until("the front is ready", LONG, async || {
        let ready = try_request(front.operations, "GET", "/readyz", &[], b"").await?;
        (ready.json["status"] == "ready").then_some(())
    })
    .await;
    let (event, at) = (event("evt-1", "payment.succeeded", &sale, &order), front.buyers.unwrap());
    let paid = until("the payment is answered", LONG, async || {
        let answer = event.send_to(at).await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    front.child.kill().await.unwrap();
    assert_eq!(paid.json["state"], "applied", "{}", paid.text);
    database.restore().await;

    let running = world.running().await;
    until("the loss is noticed", LONG, async || running.parts.store.behind()).await;
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert_eq!(code, 0, "{out}{err}");
    until_status(&running, &order, OrderStatus::Paid).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_broker_a_payment_is_answered_503_or_as_configured() {
    let mut world = World::new(Database::Sqlite).await;
    world.set(&format!("payments.secrets=acme {SECRET}"));
    let proxy = behind_proxy(&mut world, "queue.url").await;
    let running = world.running().await;
    let sale = sale(&world.name, 2, 1);
    world.open_sale(&running.parts, &sale).await;
    let order = buy_one(&running, &sale, "ada").await;
    for weather in [Weather::Down, Weather::Frozen] {
        proxy.set(weather);
        let paid = event(&format!("evt-{weather:?}"), "payment.succeeded", &sale, &order);
        let refused = paid.send(&running).await;
        assert_eq!((refused.status, refused.code()), (503, "act_unfinished"), "{}", refused.text);
        assert!(refused.headers.contains_key("retry-after"));
        assert_eq!(status(&running, &order).await, Some(OrderStatus::Paid), "it has its effect");
        proxy.set(Weather::Fair);
        running.publisher_is_up(LONG).await.unwrap();
        let state = if weather == Weather::Down { "applied" } else { "late" };
        until("the provider's next try is answered", LONG, async || {
            let answer = paid.send(&running).await;
            assert!(answer.status == 503 || answer.json["state"] == state, "{}", answer.text);
            (answer.status == 200).then_some(())
        })
        .await;
    }
    running.stop().await;

    world.set("payments.without_broker=accept");
    let running = world.running_as(Role::Front).await;
    proxy.set(Weather::Down);
    let answer = event("evt-3", "payment.refunded", &sale, &order).send(&running).await;
    assert_eq!((answer.status, answer.json["state"].as_str()), (200, Some("applied")), "{}", answer.text);
    running.stop().await;
}

/// The database is restored to the moment before a buyer cancels, an operator refunds, and a command cancels.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_was_answered_outlives_the_databases_last_commits() {
    let mut world = World::new(Database::Postgres).await;
    // The log writer must not be faster than the loss.
    world.set("maintenance.every_ms=60000");
    let running = world.running().await;
    let sale =
        Sale { terms: Terms { pay_within_s: Some(3_600), ..Terms::default() }, ..sale(&world.name, 3, 1) };
    world.open_sale(&running.parts, &sale).await;
    let (ada, operator) = (Buyer::of(&running, "ada"), Buyer::operator(&running, OperatorRole::Operator));
    let by_buyer = buy_one(&running, &sale, "ada").await;
    let by_operator = buy_one(&running, &sale, "bob").await;
    let by_command = buy_one(&running, &sale, "cleo").await;
    let path = |base: &str, order: &str, act: &str| format!("{base}/sales/{}/orders/{order}:{act}", sale.id);
    let pays = path("/v1/admin", &by_operator, "pay");
    assert_eq!(operator.post(&pays, &[], "{}").await.status, 200);
    let database = Backup::of(&world);
    database.make().await;
    // The second one finds the order ended, and is answered on the same condition.
    for _ in 0..2 {
        // The backup has cut the connections off, so the first may not be answered.
        let cancelled = until("the cancellation is answered", LONG, async || {
            let answer = ada.post(&path("/v1", &by_buyer, "cancel"), &[], "{}").await;
            Some(answer).filter(|answer| answer.code() != "act_unfinished")
        })
        .await;
        assert_eq!(cancelled.json["status"], "cancelled", "{}", cancelled.text);
    }
    let refunded = operator.post(&path("/v1/admin", &by_operator, "refund"), &[], "{}").await;
    assert_eq!(refunded.json["order"]["status"], "refunded", "{}", refunded.text);
    let (code, out, err) = run(Some(&world), &["order", "cancel", sale.id.as_str(), &by_command]).await;
    assert_eq!(code, 0, "{out}{err}");
    database.restore().await;
    until("the loss is noticed", LONG, async || running.parts.store.behind()).await;
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert_eq!(code, 0, "{out}{err}");
    until_status(&running, &by_buyer, OrderStatus::Cancelled).await;
    until_status(&running, &by_operator, OrderStatus::Refunded).await;
    until_status(&running, &by_command, OrderStatus::Cancelled).await;
    let history = running.parts.store.history(by_buyer.parse().unwrap()).await.unwrap();
    assert_eq!(history.len(), 1, "cancelled once: {history:?}");
    assert_eq!(history[0].actor, "buyer", "the replay restores who did it, and does not end it itself");
    at_rest(&running, &sale).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_broker_a_cancellation_is_answered_and_logged_later() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=200");
    let proxy = behind_proxy(&mut world, "queue.url").await;
    let running = world.running().await;
    let sale = sale(&world.name, 2, 1);
    world.open_sale(&running.parts, &sale).await;
    for (user, weather) in [("ada", Weather::Down), ("bob", Weather::Frozen)] {
        let order = buy_one(&running, &sale, user).await;
        proxy.set(weather);
        let path = format!("/v1/sales/{}/orders/{order}:cancel", sale.id);
        let cancelled = Buyer::of(&running, user).post(&path, &[], "{}").await;
        assert_eq!(
            (cancelled.status, &cancelled.json["status"]),
            (200, &"cancelled".into()),
            "{}",
            cancelled.text
        );
        proxy.set(Weather::Fair);
        running.publisher_is_up(LONG).await.unwrap();
        until("the order log has it", LONG, async || {
            let unlogged = running.parts.store.unlogged(100).await.ok()?;
            unlogged.ids.is_empty().then_some(())
        })
        .await;
    }
    running.stop().await;
}
