//! Readings in pages, on each of the three databases: every order is read once, wherever the pages end.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbuster::domain::{Act, ActRequest, Millis, Number, Order, OrderId, UserId};
use doorbuster::store::{Change, OlderEpoch, Store};

use crate::seams::store::{claim, on_every_database, world};
use crate::support::{Database, order};

on_every_database!(
    every_order_is_in_one_page_with_all_others_of_its_user,
    orders_of_older_epochs_are_read_across_pages,
    sums_are_added_up_again_only_after_a_change,
);

/// More than the largest page, with three orders for each user, so that a page of a round number would end between them.
const ORDERS: i64 = 5_199;

async fn record(store: &Store, orders: &[Order]) {
    for orders in orders.chunks(400) {
        let claims: Vec<_> = orders.iter().map(|order| claim(order, 1)).collect();
        store.record(&claims, &|| true).await.unwrap();
    }
}

fn orders(sale: &doorbuster::domain::Sale, numbers: std::ops::Range<i64>) -> Vec<Order> {
    let user = |seq: i64| format!("user{:05}", (seq * 7_919) % (ORDERS / 3));
    let orders = numbers.map(|seq| Order { limit: 9, ..order(&sale.id, &user(seq), seq) });
    orders.collect()
}

async fn every_order_is_in_one_page_with_all_others_of_its_user(database: Database) {
    let (_world, store, sale) = world(database, ORDERS, 9).await;
    let orders = orders(&sale, 1..ORDERS + 1);
    record(&store, &orders).await;
    let (mut ids, mut users, mut sizes) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let mut pages = store.order_pages(&sale.id);
    while let Some(page) = pages.next().await.unwrap() {
        sizes.push(page.len());
        let of_page: BTreeSet<UserId> = page.iter().map(|row| row.order.user.clone()).collect();
        assert!(users.is_disjoint(&of_page), "a user is in two pages");
        users.extend(of_page);
        for row in page {
            assert!(ids.insert(row.order.id), "an order is in two pages");
        }
    }
    assert_eq!(ids, orders.iter().map(|order| order.id).collect::<BTreeSet<OrderId>>());
    assert!(sizes.len() > 2 && sizes.iter().all(|size| *size < 3_000), "{sizes:?}");
    let other = world_sale_without_orders(&store).await;
    assert!(store.order_pages(&other).next().await.unwrap().is_none());
    let versions = store.row_versions(&[orders[0].id, OrderId::generate()]).await.unwrap();
    assert_eq!(versions.into_iter().collect::<Vec<_>>(), [(orders[0].id, 1)]);
}

async fn world_sale_without_orders(store: &Store) -> doorbuster::domain::SaleId {
    let empty = crate::support::sale("empty", 1, 1);
    store.create_sale(&empty).await.unwrap();
    empty.id
}

async fn orders_of_older_epochs_are_read_across_pages(database: Database) {
    let (_world, store, sale) = world(database, 3 * ORDERS, 9).await;
    let mut orders = orders(&sale, 1..ORDERS + 21);
    // The last few: some in the second epoch, some in the third.
    for (nth, order) in orders.iter_mut().skip(ORDERS as usize).enumerate() {
        order.number = Number { epoch: if nth < 10 { 2 } else { 3 }, seq: 1 + nth as i64 };
    }
    record(&store, &orders).await;
    let read = async |epoch, recorded_since| {
        let mut ids = Vec::new();
        let mut pages = store.live_orders_before(&sale.id, OlderEpoch { epoch, recorded_since });
        while let Some(page) = pages.next().await.unwrap() {
            ids.extend(page.into_iter().map(|order| order.id));
        }
        ids.sort();
        ids
    };
    let of = |epochs: &[i64]| {
        let mut ids: Vec<OrderId> = orders
            .iter()
            .filter(|order| epochs.contains(&order.number.epoch))
            .map(|order| order.id)
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(read(1, Millis(0)).await, []);
    assert_eq!(read(2, Millis(0)).await, of(&[1]));
    assert_eq!(read(3, Millis(0)).await, of(&[1, 2]));
    assert_eq!(read(9, Millis(0)).await, of(&[1, 2, 3]));
    assert_eq!(read(9, Millis(i64::MAX)).await, []);
}

async fn sums_are_added_up_again_only_after_a_change(database: Database) {
    let (_world, store, sale) = world(database, ORDERS, 9).await;
    let orders = orders(&sale, 1..ORDERS + 1);
    record(&store, &orders).await;
    let added_up = AtomicU64::new(0);
    let progress = |orders| added_up.store(orders, Ordering::Relaxed);
    let first = store.snapshot(&sale.id, &[], None, &progress).await.unwrap().expect("a sale");
    assert_eq!((first.totals.orders, first.totals.live_orders), (ORDERS as u64, ORDERS as u64));
    assert_eq!(added_up.swap(0, Ordering::Relaxed), ORDERS as u64);
    let known = first.known();
    let second = store.snapshot(&sale.id, &[], Some(&known), &progress).await.unwrap().expect("a sale");
    assert_eq!(second.totals.live_orders, ORDERS as u64);
    assert_eq!(added_up.load(Ordering::Relaxed), 0, "nothing has changed");
    let asked = ActRequest::by("test");
    let change = Change { id: orders[0].id, act: Act::Cancel, asked, fence: 2 };
    store.change(&[change], &|| true).await.unwrap();
    let third = store.snapshot(&sale.id, &[], Some(&known), &progress).await.unwrap().expect("a sale");
    assert_eq!(added_up.load(Ordering::Relaxed), ORDERS as u64);
    assert_eq!(third.totals.live_orders, ORDERS as u64 - 1);
    assert_eq!(third.totals.returning_units.values().sum::<i64>(), 1);
}
