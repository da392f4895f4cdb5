//! Restoring rows from log entries, many in one transaction, on each of the three databases.

use std::time::Duration;

use doorbuster::domain::{Entry, Failure, Item, Order, OrderEntry, OrderId, OrderStatus, PaymentEntry, Step};
use doorbuster::store::{OrderRow, Recorded, Restore, Restored, Store, WriteMode};

use crate::faults::stalls::Session;
use crate::seams::store::{claim, on_every_database, sold, world};
use crate::support::{Database, id, order, until};

on_every_database!(
    many_orders_of_all_kinds_are_updated_together,
    an_order_that_the_database_refuses_holds_up_no_other,
    the_newest_state_of_each_payment_wins,
    money_that_went_back_stays_back_whatever_the_clocks_say,
);

/// The order as the log has it after one more change.
fn changed(row: &OrderRow, to: OrderStatus) -> Restore {
    let step = Step {
        version: row.version + 1,
        from: row.status,
        to,
        by: "op".into(),
        reason: None,
        at: row.updated_at,
    };
    let entry = OrderEntry {
        order: row.order.clone(),
        status: to,
        failure: None,
        version: row.version + 1,
        recorded_at: row.recorded_at,
        updated_at: row.updated_at,
        pay_by: None,
        history: vec![step],
    };
    Restore { entry, begins: false, fence: 2 }
}

async fn rows(store: &Store, orders: &[Order]) -> Vec<OrderRow> {
    let ids: Vec<OrderId> = orders.iter().map(|order| order.id).collect();
    let mut rows = store.orders_by_id(&ids).await.unwrap();
    rows.sort_by_key(|row| row.order.number);
    rows
}

async fn many_orders_of_all_kinds_are_updated_together(database: Database) {
    let (_world, store, mut sale) = world(database, 900, 9).await;
    sale.id = id("two");
    sale.items.push(Item { sku: id("hat"), stock: 900, limit_per_user: None });
    store.create_sale(&sale).await.unwrap();
    // Of two items, one to three units each, two orders for each user.
    let orders: Vec<Order> = (1..=60)
        .map(|seq| Order {
            quantity: 1 + (seq % 3) as u32,
            limit: 9,
            sku: id(if seq % 2 == 0 { "unit" } else { "hat" }),
            ..order(&sale.id, &format!("user{}", seq % 30), seq)
        })
        .collect();
    let claims: Vec<_> = orders.iter().map(|order| claim(order, 1)).collect();
    store.record(&claims, &|| true).await.unwrap();
    let all_units = sold(&store, &sale).await;
    let to = |seq: i64| match seq % 4 {
        0 => OrderStatus::Paid,
        1 => OrderStatus::Cancelled,
        2 => OrderStatus::Expired,
        _ => OrderStatus::Confirmed,
    };
    let restores: Vec<Restore> = rows(&store, &orders)
        .await
        .iter()
        .filter(|row| to(row.order.number.seq) != OrderStatus::Confirmed)
        .map(|row| changed(row, to(row.order.number.seq)))
        .collect();
    let restored = store.restore_orders(&restores, false, &|| true).await.unwrap();
    assert!(restored.iter().all(|restored| *restored == Restored::Changed), "{restored:?}");

    let ended: i64 = restores
        .iter()
        .filter(|restore| !restore.entry.status.is_live())
        .map(|restore| i64::from(restore.entry.order.quantity))
        .sum();
    // `sold` compares the counters of the items with the rows.
    assert_eq!(sold(&store, &sale).await, all_units - ended);
    for row in rows(&store, &orders).await {
        let seq = row.order.number.seq;
        assert_eq!(row.status, to(seq), "{row:?}");
        let original = orders.iter().find(|order| order.id == row.order.id).expect("known");
        assert_eq!(row.order, *original, "nothing else of the order changes");
        let events = store.history(row.order.id).await.unwrap();
        assert_eq!(events.len(), usize::from(to(seq) != OrderStatus::Confirmed));
    }
    let owed = store.pending_returns(&[], 100).await.unwrap();
    assert_eq!(owed.len(), 30, "each ended order gives its units back");
    // The users' units were lowered too: each may buy what is left of the limit, and no more.
    for user in 0..30_i64 {
        let live: u32 = orders
            .iter()
            .filter(|order| order.user == id(&format!("user{user}")) && to(order.number.seq).is_live())
            .map(|order| order.quantity)
            .sum();
        let next = |seq, quantity| Order {
            quantity,
            limit: 9,
            ..order(&sale.id, &format!("user{user}"), 1_000 + 2 * user + seq)
        };
        let claims = [claim(&next(0, 9 - live), 3), claim(&next(1, 1), 3)];
        let recorded = store.record(&claims, &|| true).await.unwrap();
        let fits = matches!(recorded[..], [Recorded::Confirmed, Recorded::Failed(Failure::OverLimit, _)]);
        assert!(fits, "{user}: {recorded:?}");
    }
    let again = store.restore_orders(&restores, false, &|| true).await.unwrap();
    assert!(again.iter().all(|restored| *restored == Restored::Same), "{again:?}");
}

async fn an_order_that_the_database_refuses_holds_up_no_other(database: Database) {
    let (_world, store, sale) = world(database, 9, 1).await;
    let orders: Vec<Order> = (1..=7).map(|seq| order(&sale.id, &format!("user{seq}"), seq)).collect();
    let claims: Vec<_> = orders.iter().map(|order| claim(order, 1)).collect();
    store.record(&claims, &|| true).await.unwrap();
    let mut restores: Vec<Restore> =
        rows(&store, &orders).await.iter().map(|row| changed(row, OrderStatus::Cancelled)).collect();
    // The row has taken another path.
    restores[3].entry.version = 1;
    restores[3].entry.status = OrderStatus::Paid;
    let restored = store.restore_orders(&restores, true, &|| true).await.unwrap();
    for (nth, restored) in restored.iter().enumerate() {
        assert_eq!(matches!(restored, Restored::Refused(_)), nth == 3, "{nth}: {restored:?}");
    }
    assert_eq!(sold(&store, &sale).await, 1);
    // With `relog`, each written order is logged, and no other.
    assert_eq!(store.unlogged(100).await.unwrap().ids.len(), 6 + 1, "six orders and the sale");
}

fn payment(nth: usize, order: OrderId, state: &str, at: i64) -> PaymentEntry {
    PaymentEntry {
        provider: if nth.is_multiple_of(2) { "acme".into() } else { "other".into() },
        event_id: format!("evt-{nth}"),
        event: "paid".into(),
        sale_id: id("drop"),
        order_id: order,
        user_id: None,
        state: state.into(),
        new_order_id: None,
        detail: nth.is_multiple_of(3).then(|| format!("detail at {at}")),
        received_at: doorbuster::domain::Millis(1),
        due_at: doorbuster::domain::Millis(2),
        updated_at: doorbuster::domain::Millis(at),
    }
}

async fn the_newest_state_of_each_payment_wins(database: Database) {
    let (_world, store, sale) = world(database, 9, 1).await;
    let order = order(&sale.id, "ada", 1);
    let restore = async |payments: &[PaymentEntry], mode| {
        let restored = store.restore_payments(payments, mode).await.unwrap();
        (restored.changed, restored.refused.len())
    };
    let state = async |nth: usize| {
        let found = store.payments_of(&[order.id]).await.unwrap();
        let found = found.into_values().flatten().find(|found| found.event_id == format!("evt-{nth}"));
        found.map(|found| (found.state.as_str().to_owned(), found.detail))
    };
    let pending: Vec<_> = (0..20).map(|nth| payment(nth, order.id, "pending", 10)).collect();
    assert_eq!(restore(&pending, WriteMode::DryRun).await, (20, 0));
    assert_eq!(state(0).await, None, "a plan writes nothing");
    assert_eq!(restore(&pending, WriteMode::Rows).await, (20, 0));
    assert_eq!(restore(&pending, WriteMode::Rows).await, (0, 0));
    // The same event several times in one batch, the newest in the middle; an older state that has ended; a newer one
    // that is pending.
    let batch = [
        payment(0, order.id, "pending", 11),
        payment(0, order.id, "applied", 12),
        payment(0, order.id, "pending", 99),
        payment(1, order.id, "applied", 5),
        payment(2, order.id, "pending", 9),
        payment(3, order.id, "late", 30),
        payment(20, order.id, "refunded", 30),
    ];
    assert_eq!(restore(&batch, WriteMode::DryRun).await, (4, 0));
    assert_eq!(restore(&batch, WriteMode::RowsAndLog).await, (4, 0));
    assert_eq!(state(0).await, Some(("applied".into(), Some("detail at 12".into()))));
    assert_eq!(state(1).await, Some(("applied".into(), None)));
    assert_eq!(state(2).await, Some(("pending".into(), None)));
    assert_eq!(state(20).await, Some(("refunded".into(), None)));
    assert_eq!(restore(&[payment(3, order.id, "pending", 99)], WriteMode::Rows).await, (0, 0));
    assert_eq!(restore(&[payment(3, order.id, "retaken", 31)], WriteMode::Rows).await, (1, 0));
    assert_eq!(state(3).await, Some(("retaken".into(), Some("detail at 31".into()))));
    // One that does not fit its column is refused alone. SQLite takes any length.
    let mut long = payment(30, order.id, "applied", 40);
    long.provider = "x".repeat(5_000);
    let batch = [payment(31, order.id, "applied", 40), long, payment(32, order.id, "applied", 40)];
    let (changed, refused) = restore(&batch, WriteMode::Rows).await;
    assert_eq!((changed, refused), if database == Database::Sqlite { (3, 0) } else { (2, 1) });
    assert!(state(31).await.is_some() && state(32).await.is_some());
}

/// One front, whose clock was ahead, called the payment late; another took its refund.
async fn money_that_went_back_stays_back_whatever_the_clocks_say(database: Database) {
    let (_world, store, sale) = world(database, 9, 1).await;
    let order = order(&sale.id, "ada", 1);
    let late = |nth| payment(nth, order.id, "late", 60);
    let refunded = |nth| payment(nth, order.id, "refunded", 5);
    for batch in [vec![late(0)], vec![refunded(0)], vec![late(0)], vec![late(1), refunded(1), late(1)]] {
        store.restore_payments(&batch, WriteMode::Rows).await.unwrap();
    }
    let found = store.payments_of(&[order.id]).await.unwrap();
    let states: Vec<_> = found.values().flatten().map(|payment| payment.state.as_str()).collect();
    assert_eq!(states, ["refunded", "refunded"]);
}

/// The log gets a payment together with what it has changed. Here a restore takes back the change while the two are read.
#[tokio::test(flavor = "multi_thread")]
async fn a_payment_and_what_it_changed_are_read_at_one_moment() {
    let (world, store, sale) = world(Database::Postgres, 9, 1).await;
    let order = order(&sale.id, "ada", 1);
    store.record(&[claim(&order, 1)], &|| true).await.unwrap();
    let paid = changed(&rows(&store, std::slice::from_ref(&order)).await[0], OrderStatus::Paid);
    store.restore_orders(&[paid], false, &|| true).await.unwrap();
    store.restore_payments(&[payment(0, order.id, "applied", 10)], WriteMode::Rows).await.unwrap();

    let mut restore = Session::open(&world).await;
    restore.execute("BEGIN".into()).await;
    restore.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE".into()).await;
    let reading = tokio::spawn(async move { store.payment_entries(&[order.id]).await.unwrap() });
    let mut observer = Session::open(&world).await;
    let waiting = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    until("the reader at the orders", Duration::from_secs(20), async || {
        (observer.numbers(waiting.into()).await == [1]).then_some(())
    })
    .await;
    restore.execute("UPDATE orders SET status = 'confirmed', version = 0".into()).await;
    restore.execute("COMMIT".into()).await;

    let entries = reading.await.unwrap();
    let status = entries.iter().find_map(|entry| match entry {
        Entry::Order(entry) => Some(entry.status),
        _ => None,
    });
    assert_eq!(status, Some(OrderStatus::Paid), "{entries:?}");
    assert!(entries.iter().any(|entry| matches!(entry, Entry::Payment(_))), "{entries:?}");
}
