//! A replay of more than one transaction: several are under way at once.

use doorbuster::domain::{Entry, Order, Verdict};

use crate::support::{Database, World, attempt, run, sale, verdicts};

/// A user may have orders in every part of it, and only one transaction can have his lease.
#[tokio::test(flavor = "multi_thread")]
async fn many_orders_of_few_users_are_replayed_once_each() {
    const USERS: usize = 20;
    const EACH: usize = 25;
    let world = World::new(Database::Postgres).await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 10_000, 100);
    world.open_sale(&parts, &sale).await;
    let mut orders: Vec<Order> = Vec::new();
    for nth in 0..EACH {
        let key = format!("key-{nth}");
        let attempts: Vec<_> =
            (0..USERS).map(|user| attempt(&sale.id, &format!("user{user}"), Some(&key), 1)).collect();
        for verdict in verdicts(&parts.gate, &sale.id, &attempts).await {
            let Verdict::Accepted(order) = verdict else { panic!("{verdict:?}") };
            orders.push(order);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.ndjson");
    let line = |order: &Order| serde_json::to_string(&Entry::Accepted(order.clone())).unwrap() + "\n";
    std::fs::write(&file, orders.iter().map(line).collect::<String>()).unwrap();
    let replay = ["replay", "run", "file", file.to_str().unwrap(), "--yes", "--output", "json"];
    for (inserted, already) in [(USERS * EACH, 0), (0, USERS * EACH)] {
        let (code, out, err) = run(Some(&world), &replay).await;
        let done: serde_json::Value = serde_json::from_str(&out).expect(&err);
        let counts = &done["report"]["counts"];
        assert_eq!(
            (code, &counts["inserted"], &counts["already"], &counts["busy"]),
            (0, &inserted.into(), &already.into(), &0.into()),
            "{done}"
        );
        let totals = parts.store.totals(&sale.id).await.unwrap();
        assert_eq!(totals.live_orders, (USERS * EACH) as u64);
        for user in 0..USERS {
            let rows =
                parts.store.orders_of(&sale.id, &format!("user{user}").parse().unwrap()).await.unwrap();
            assert_eq!(rows.len(), EACH);
        }
    }
}
