//! A purge that ends half way, on each of the three databases.

use std::collections::BTreeSet;

use doorbuster::domain::{Act, ActRequest, Millis, Order};
use doorbuster::store::{Change, Changed, Payment, PaymentKind, PaymentState};

use crate::seams::store::{claim, on_every_database, sold, world};
use crate::support::{Database, order};

on_every_database!(what_a_purge_leaves_has_books_that_are_right);

/// A payment is owed to the last of many users, each of whom has two orders, far apart.
async fn what_a_purge_leaves_has_books_that_are_right(database: Database) {
    const USERS: i64 = 1_100;
    let (_world, store, sale) = world(database, 2 * USERS, 9).await;
    let user = |seq: i64| format!("user{:05}", seq % USERS);
    let orders: Vec<Order> =
        (0..2 * USERS).map(|seq| Order { limit: 9, ..order(&sale.id, &user(seq), seq + 1) }).collect();
    for orders in orders.chunks(400) {
        let claims: Vec<_> = orders.iter().map(|order| claim(order, 1)).collect();
        store.record(&claims, &|| true).await.unwrap();
    }
    let owed = orders.last().expect("orders");
    let payment = Payment {
        provider: "acme".into(),
        event_id: "evt".into(),
        kind: PaymentKind::Paid,
        sale: sale.id.clone(),
        order: owed.id,
        user: None,
        state: PaymentState::Pending,
        new_order: None,
        detail: None,
        received_at: Millis::now(),
    };
    store.receive_payment(&payment).await.unwrap();

    let purged = store.purge_sale(&sale.id).await.unwrap();
    assert!(purged.owed == 1 && purged.orders >= 1_000, "{purged:?}");
    let left = 2 * USERS - i64::try_from(purged.orders).unwrap();
    assert_eq!(sold(&store, &sale).await, left);
    let mut kept = Vec::new();
    let mut pages = store.order_pages(&sale.id);
    while let Some(page) = pages.next().await.unwrap() {
        kept.extend(page.into_iter().map(|row| row.order));
    }
    let users: BTreeSet<_> = kept.iter().map(|order| &order.user).collect();
    assert_eq!(kept.len(), 2 * users.len(), "whole users");
    // Every one of them can still end.
    let cancel =
        |order: &Order| Change { id: order.id, act: Act::Cancel, asked: ActRequest::by("op"), fence: 2 };
    for orders in kept.chunks(200) {
        let changes: Vec<_> = orders.iter().map(cancel).collect();
        let changed = store.change(&changes, &|| true).await.unwrap();
        assert!(changed.iter().all(|changed| matches!(changed, Changed::Now(_))), "{changed:?}");
    }
    assert_eq!(sold(&store, &sale).await, 0);
}
