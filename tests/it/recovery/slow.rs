//! A replay on a database that is too slow for a full batch.

use doorbuster::domain::{Act, ActRequest, Order};
use doorbuster::store::{Change, Changed};

use crate::seams::store::{claim, orders};
use crate::support::{Backup, Database, World, run, sale};

const ORDERS: i64 = 700;

/// Four transactions at once have 175 orders each: that is 1.75 seconds, and the limit of a transaction is one.
const SLOW: [&str; 2] = [
    "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END'",
    "CREATE TRIGGER slow BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION slow()",
];

#[tokio::test(flavor = "multi_thread")]
async fn batches_shrink_on_a_database_that_is_too_slow_for_a_full_one() {
    let mut world = World::new(Database::Postgres).await;
    let parts = world.parts().await;
    let sale = sale(&world.name, ORDERS, 1);
    world.open_sale(&parts, &sale).await;
    // They have not come through the gate, so its books do not balance.
    let orders: Vec<Order> = orders(&sale, 100..100 + ORDERS);
    for orders in orders.chunks(350) {
        let claims: Vec<_> = orders.iter().map(|order| claim(order, 1)).collect();
        parts.store.record(&claims, &|| true).await.unwrap();
        let asked = ActRequest::by("op");
        let change = |order: &Order| Change { id: order.id, act: Act::Pay, asked: asked.clone(), fence: 2 };
        let paid: Vec<_> = orders.iter().map(change).collect();
        let paid = parts.store.change(&paid, &|| true).await.unwrap();
        assert!(paid.iter().all(|paid| matches!(paid, Changed::Now(_))));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sale.jsonl");
    let file = file.to_str().expect("a path");
    let (code, _, err) = run(Some(&world), &["export", "--sale", sale.id.as_str(), "--file", file]).await;
    assert_eq!(code, 0, "{err}");

    let database = Backup::of(&world);
    database.execute_in_place("UPDATE orders SET status = 'confirmed', version = 1").await;
    database.execute_in_place("DELETE FROM order_events").await;
    for statement in SLOW {
        database.execute_in_place(statement).await;
    }
    world.set("database.timeout_ms=1000");
    let (code, out, err) = run(Some(&world), &["replay", "run", "file", file, "--yes"]).await;
    assert!(out.contains(&format!("{ORDERS} brought up to date")), "{code} {out}{err}");
    assert!(err.contains("no answer from the database within 1s"), "a full batch was tried: {err}");
    let (code, out, _) = run(Some(&world), &["replay", "plan", "file", file]).await;
    assert!(code == 0 && out.contains(&format!("{ORDERS} already there")), "{code} {out}");
}
