//! Endpoints of webhooks that are switched off because they fail.

use std::time::Duration;

use axum::http::StatusCode;
use sqlx::{Connection as _, Executor as _};

use super::webhooks::{add, buy, has_kinds, listed, open, world};
use crate::faults::stalls::Session;
use crate::seams::store::claim;
use crate::support::{Database, Manner, Receiver, order, run, sale, until};

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_gone_is_switched_off_and_said_so() {
    let world = world(Database::Sqlite).await;
    let receiver = Receiver::start().await;
    receiver.behave(Manner::Answers(StatusCode::GONE));
    let old = add(&world, "shop", &receiver).await;
    let (running, sale) = open(&world).await;
    let missed = buy(&running, &sale, "ada").await;
    let out = listed(&world, "off: it answered 410").await;
    assert!(out.contains("shop"), "{out}");
    receiver.behave(Manner::Takes);
    let (code, out, err) = run(Some(&world), &["webhook", "rotate", "shop", "--by", "ada"]).await;
    let new =
        out.lines().find(|line| line.starts_with("whsec_")).unwrap_or_else(|| panic!("{code} {out}{err}"));
    let again = run(Some(&world), &["webhook", "rotate", "shop"]).await;
    assert!(again.0 == 2 && again.2.contains("--retire"), "{again:?}");
    assert_eq!(run(Some(&world), &["webhook", "on", "shop"]).await.0, 0);
    assert_eq!(run(Some(&world), &["webhook", "redeliver", "shop"]).await.0, 0);
    has_kinds(&receiver, missed.order_id(), &["order.confirmed"]).await;
    let delivered = receiver.delivered().remove(0);
    assert!(delivered.is_signed_with(&old) && delivered.is_signed_with(new), "{delivered:?}");
    assert_eq!(run(Some(&world), &["webhook", "rotate", "shop", "--retire"]).await.0, 0);
    let order = buy(&running, &sale, "bob").await;
    has_kinds(&receiver, order.order_id(), &["order.confirmed"]).await;
    let delivered = receiver.delivered().pop().unwrap();
    assert!(!delivered.is_signed_with(&old) && delivered.is_signed_with(new), "{delivered:?}");
    let acts = run(Some(&world), &["acts"]).await.1;
    assert!(acts.contains("webhook rotate") && acts.contains("operator ada"), "{acts}");
    assert!(!acts.contains("whsec_"), "{acts}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_takes_nothing_for_five_days_is_switched_off() {
    let world = world(Database::Sqlite).await;
    let receiver = Receiver::start().await;
    receiver.behave(Manner::Answers(StatusCode::INTERNAL_SERVER_ERROR));
    add(&world, "shop", &receiver).await;
    let (running, sale) = open(&world).await;
    let order = buy(&running, &sale, "ada").await;
    let out = listed(&world, "fails since").await;
    assert!(out.contains("last error: it answered 500"), "{out}");
    let mut database = sqlx::SqliteConnection::connect(&world.config().database.url).await.unwrap();
    let long_ago = "UPDATE webhook_endpoints SET failing_since_ms = failing_since_ms - 432000000";
    database.execute(long_ago).await.unwrap();
    database.execute("UPDATE webhook_deliveries SET due_at_ms = 0").await.unwrap();
    listed(&world, "off: nothing could be delivered for five days").await;
    receiver.behave(Manner::Takes);
    assert_eq!(run(Some(&world), &["webhook", "on", "shop"]).await.0, 0);
    assert_eq!(run(Some(&world), &["webhook", "redeliver", "shop"]).await.0, 0);
    has_kinds(&receiver, order.order_id(), &["order.confirmed"]).await;
    running.stop().await;
}

/// It failed until everything was given up, and was repaired while there was nothing to give. Weeks later it fails once.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_had_nothing_to_take_is_not_switched_off_by_its_first_failure() {
    let world = world(Database::Sqlite).await;
    let receiver = Receiver::start().await;
    receiver.behave(Manner::Answers(StatusCode::INTERNAL_SERVER_ERROR));
    add(&world, "shop", &receiver).await;
    let (running, sale) = open(&world).await;
    buy(&running, &sale, "ada").await;
    let endpoint = async || running.parts.store.endpoints().await.unwrap().remove(0);
    until("it fails", LONG, async || endpoint().await.failing_since).await;
    let mut database = sqlx::SqliteConnection::connect(&world.config().database.url).await.unwrap();
    let long_ago = "UPDATE webhook_endpoints SET failing_since_ms = failing_since_ms - 1728000000";
    database.execute(long_ago).await.unwrap();
    database.execute("UPDATE webhook_deliveries SET due_at_ms = NULL").await.unwrap();
    until("nothing waits for it", LONG, async || endpoint().await.failing_since.is_none().then_some(()))
        .await;
    let order = buy(&running, &sale, "bob").await;
    until("it fails again", LONG, async || endpoint().await.failing_since).await;
    receiver.behave(Manner::Takes);
    has_kinds(&receiver, order.order_id(), &["order.confirmed"]).await;
    running.stop().await;
}

/// As in a database that has become read-only, or whose disk is full.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_records_no_delivery_has_none_repeated_at_once() {
    let world = world(Database::Postgres).await;
    let receiver = Receiver::start().await;
    add(&world, "shop", &receiver).await;
    let mut session = Session::open(&world).await;
    session
        .execute("CREATE RULE kept AS ON DELETE TO webhook_deliveries DO INSTEAD SELECT 1 / 0".into())
        .await;
    let (running, sale) = open(&world).await;
    let order = buy(&running, &sale, "ada").await;
    until("it was given the order", LONG, async || (!receiver.delivered().is_empty()).then_some(())).await;
    // Long enough for several rounds.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(receiver.kinds_of(order.order_id()), ["order.confirmed"]);
    session.execute("DROP RULE kept ON webhook_deliveries".into()).await;
    until("the delivery is recorded", LONG, async || {
        running.parts.store.waiting_deliveries().await.ok()?.is_empty().then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_being_removed_is_given_nothing_more() {
    let world = world(Database::Postgres).await;
    let receiver = Receiver::start().await;
    add(&world, "shop", &receiver).await;
    let (parts, sale) = (world.parts().await, sale(&world.name, 100, 1));
    world.open_sale(&parts, &sale).await;
    let store = parts.store;
    store.record(&[claim(&order(&sale.id, "ada", 1), 1)], &|| true).await.unwrap();
    let mut removal = Session::open(&world).await;
    removal.execute("BEGIN".into()).await;
    removal.execute("DELETE FROM webhook_endpoints WHERE id = 'shop'".into()).await;
    removal.execute("DELETE FROM webhook_deliveries WHERE endpoint_id = 'shop'".into()).await;
    let making = store.make_deliveries(10);
    let ends = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        removal.execute("COMMIT".into()).await;
    };
    let (made, ()) = tokio::join!(making, ends);
    made.unwrap();
    assert!(store.waiting_deliveries().await.unwrap().is_empty());
}

/// It was added by somebody with other settings, or before they were changed.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_whose_address_is_not_allowed_any_more_is_given_nothing() {
    let mut world = world(Database::Sqlite).await;
    let receiver = Receiver::start().await;
    add(&world, "shop", &receiver).await;
    world.set("webhooks.allow_private=false");
    let (running, sale) = open(&world).await;
    buy(&running, &sale, "ada").await;
    listed(&world, "off: its URL or a secret is not allowed here").await;
    assert_eq!((receiver.delivered().len(), receiver.refused()), (0, 0));
    running.stop().await;
}
