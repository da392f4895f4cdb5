//! Rows that stand in the way of webhooks: one that cannot be read, one of an order that failed, and very many.

use std::time::Duration;

use super::webhooks::{add, buy, has_kinds, listed, open, world};
use crate::faults::stalls::Session;
use crate::seams::store::claim;
use crate::support::{Database, Manner, Receiver, order, run, until};

const LONG: Duration = Duration::from_secs(60);

/// As a later build may write it, which was then taken back.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_cannot_be_read_holds_up_no_others_webhook() {
    let world = world(Database::Postgres).await;
    let receiver = Receiver::start().await;
    receiver.behave(Manner::Refuses("order.confirmed"));
    add(&world, "shop", &receiver).await;
    let (running, sale) = open(&world).await;
    let unreadable = buy(&running, &sale, "ada").await.order_id().to_owned();
    until("it was tried", LONG, async || (receiver.refused() > 0).then_some(())).await;
    let mut session = Session::open(&world).await;
    session.execute(format!("UPDATE orders SET key_digest = '?' WHERE id = '{unreadable}'")).await;
    receiver.behave(Manner::Takes);
    assert_eq!(run(Some(&world), &["webhook", "redeliver", "shop"]).await.0, 0);
    let readable = buy(&running, &sale, "bob").await;
    has_kinds(&receiver, readable.order_id(), &["order.confirmed"]).await;
    let out = listed(&world, "an order's row cannot be read by this build").await;
    assert!(!out.contains("ada"), "nobody is named: {out}");
    assert_eq!(run(Some(&world), &["webhook", "redeliver", "shop"]).await.0, 0);
    until("it is tried twice", LONG, async || {
        let tries = "SELECT CAST(tries AS BIGINT) FROM webhook_deliveries";
        (session.numbers(tries.into()).await == [2]).then_some(())
    })
    .await;
    let (_, out, _) = run(Some(&world), &["webhook", "list"]).await;
    assert!(!out.contains("fails since"), "the endpoint is not to blame: {out}");
    let digest = "(SELECT key_digest FROM orders WHERE key_digest <> '?' LIMIT 1)";
    session.execute(format!("UPDATE orders SET key_digest = {digest} WHERE id = '{unreadable}'")).await;
    assert!(receiver.kinds_of(&unreadable).is_empty());
    assert_eq!(run(Some(&world), &["webhook", "redeliver", "shop"]).await.0, 0);
    has_kinds(&receiver, &unreadable, &["order.confirmed"]).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_failed_says_why() {
    let world = world(Database::Sqlite).await;
    let receiver = Receiver::start().await;
    add(&world, "shop", &receiver).await;
    let (running, sale) = open(&world).await;
    let mut failed = order(&sale.id, "eve", 1);
    failed.sku = "another".parse().unwrap();
    running.parts.store.record(&[claim(&failed, 1)], &|| true).await.unwrap();
    let id = failed.id.to_string();
    has_kinds(&receiver, &id, &["order.failed"]).await;
    let delivered = receiver.delivered();
    let data = &delivered.iter().find(|one| one.json["data"]["order_id"] == id).unwrap().json["data"];
    assert_eq!((&data["status"], &data["failure"]), (&"failed".into(), &"unknown_item".into()), "{data}");
    let sold = buy(&running, &sale, "ada").await;
    has_kinds(&receiver, sold.order_id(), &["order.confirmed"]).await;
    let delivered = receiver.delivered();
    let of_the_other = delivered.iter().find(|one| one.json["data"]["order_id"] == sold.order_id()).unwrap();
    assert_eq!(of_the_other.json["data"].get("failure"), None);
    running.stop().await;
}

/// A statement that changes a million rows does not end within the time limit, however often it is repeated.
#[tokio::test(flavor = "multi_thread")]
async fn however_many_deliveries_wait_they_are_redelivered_and_removed() {
    const WAITING: i64 = 25_000;
    let world = world(Database::Postgres).await;
    let receiver = Receiver::start().await;
    for endpoint in ["shop", "warehouse"] {
        add(&world, endpoint, &receiver).await;
        assert_eq!(run(Some(&world), &["webhook", "off", endpoint]).await.0, 0);
    }
    let mut session = Session::open(&world).await;
    let deliveries = async |session: &mut Session, endpoint: &str, count: i64| {
        let rows = format!(
            "INSERT INTO webhook_deliveries
                 (endpoint_id, order_id, version, sale_id, status, at_ms, tries, due_at_ms, last_error)
             SELECT '{endpoint}', md5('{endpoint}' || nth)::uuid, 1, 'shoes', 'confirmed', 0, 11, NULL, 'away'
             FROM generate_series(1, {count}) AS nth"
        );
        session.execute(rows).await;
    };
    deliveries(&mut session, "shop", WAITING).await;
    deliveries(&mut session, "warehouse", 10_000).await;
    session
        .execute(
            "CREATE FUNCTION too_many() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF (SELECT count(*) FROM changed) > 10000 THEN RAISE EXCEPTION 'too many rows'; END IF;
                 RETURN NULL;
             END $$"
                .into(),
        )
        .await;
    for (event, table) in [("UPDATE", "NEW"), ("DELETE", "OLD")] {
        let trigger = format!(
            "CREATE TRIGGER on_{event} AFTER {event} ON webhook_deliveries REFERENCING {table} TABLE AS changed
             FOR EACH STATEMENT EXECUTE FUNCTION too_many()"
        );
        session.execute(trigger).await;
    }

    for (endpoint, count) in [("shop", WAITING), ("warehouse", 10_000)] {
        let (code, out, err) = run(Some(&world), &["webhook", "redeliver", endpoint]).await;
        assert!(code == 0 && out.contains(&count.to_string()), "{code} {out}{err}");
    }
    let due = "SELECT count(*) FROM webhook_deliveries WHERE due_at_ms > 0 AND tries = 0";
    assert_eq!(session.numbers(due.into()).await, [WAITING + 10_000]);

    for statement in [
        "CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$",
        // On the last page.
        "CREATE TRIGGER kept BEFORE DELETE ON webhook_deliveries FOR EACH ROW
             WHEN (OLD.order_id > 'ff000000-0000-0000-0000-000000000000') EXECUTE FUNCTION kept()",
    ] {
        session.execute(statement.into()).await;
    }
    let (code, out, err) = run(Some(&world), &["webhook", "remove", "shop"]).await;
    assert_ne!(code, 0, "{out}{err}");
    let (_, out, _) = run(Some(&world), &["webhook", "list"]).await;
    assert!(out.contains("off: it is being removed"), "{out}");
    let left = "SELECT count(*) FROM webhook_deliveries WHERE endpoint_id = 'shop'";
    assert_eq!(session.numbers(left.into()).await, [WAITING % 10_000], "the last page");
    session.execute("DROP TRIGGER kept ON webhook_deliveries".into()).await;
    let (code, out, err) = run(Some(&world), &["webhook", "remove", "shop"]).await;
    assert_eq!(code, 0, "{out}{err}");
    let left = "SELECT count(*) FROM webhook_deliveries";
    assert_eq!(session.numbers(left.into()).await, [10_000], "those of the other endpoint");
    let (_, out, _) = run(Some(&world), &["webhook", "list"]).await;
    assert!(!out.contains("shop") && out.contains("warehouse"), "{out}");
}
