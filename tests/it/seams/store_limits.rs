//! The limit of a user's units in the database, while the sale's limit changes.

use doorbuster::domain::{Failure, Order, OrderStatus};
use doorbuster::store::Recorded;

use super::store::{claim, on_every_database, sold, world};
use crate::support::{Database, order};

on_every_database!(a_limit_that_was_raised_and_lowered_again_fails_no_accepted_order);

/// Ada has bought A and B under a limit of two, and C after it was raised to three. B is delayed until it is two again.
async fn a_limit_that_was_raised_and_lowered_again_fails_no_accepted_order(database: Database) {
    let (_world, store, sale) = world(database, 9, 2).await;
    let bought = |seq, limit| Order { limit, ..order(&sale.id, "ada", seq) };
    let (a, b, c) = (bought(1, 2), bought(2, 2), bought(3, 3));
    for order in [&a, &c, &b] {
        let recorded = store.record(&[claim(order, 1)], &|| true).await.unwrap();
        assert_eq!(recorded, [Recorded::Confirmed], "{order:?}");
    }
    // Nobody has accepted a fourth one.
    let recorded = store.record(&[claim(&bought(4, 2), 1)], &|| true).await.unwrap();
    assert!(matches!(recorded[..], [Recorded::Failed(Failure::OverLimit, _)]), "{recorded:?}");
    assert_eq!(sold(&store, &sale).await, 3);
    assert_eq!(store.totals(&sale.id).await.unwrap().users_over_limit, []);
    assert_eq!(store.order(b.id).await.unwrap().expect("a row").status, OrderStatus::Confirmed);
}
