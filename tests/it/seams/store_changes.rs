//! Changes of an order that has its row, on each of the three databases.

use std::time::{Duration, Instant};

use doorbuster::domain::{Act, ActRequest, Entry, Millis, Number, Order, OrderStatus, TermsChange};
use doorbuster::rehearsal::chaos::Weather;
use doorbuster::store::{
    Applied, Applying, BegunAct, Change, Changed, Claim, Payment, PaymentKind, PaymentState, Recorded,
    Return, StoreError,
};

use crate::seams::store::{claim, on_every_database, sold, world};
use crate::support::{Database, World, behind_proxy, order, sale, until};

on_every_database!(
    an_order_makes_only_its_legal_transitions,
    an_ended_order_returns_its_units_once,
    an_order_can_be_cancelled_before_it_has_a_row,
    many_orders_expire_together_and_none_early,
    a_payment_is_tried_again_in_time_whatever_clock_its_receiver_has,
    the_log_never_gets_a_payment_without_what_it_changed,
);

fn payment_for(order: &Order, received_at: Millis) -> Payment {
    Payment {
        provider: "acme".into(),
        event_id: "evt".into(),
        kind: PaymentKind::Paid,
        sale: order.sale.clone(),
        order: order.id,
        user: None,
        state: PaymentState::Pending,
        new_order: None,
        detail: None,
        received_at,
    }
}

/// The log writer takes the oldest changes, and reads the rows as they are by then.
async fn the_log_never_gets_a_payment_without_what_it_changed(database: Database) {
    let (_world, store, sale) = world(database, 9, 1).await;
    let order = order(&sale.id, "ada", 1);
    store.record(&[claim(&order, 1)], &|| true).await.unwrap();
    let before = store.unlogged(100).await.unwrap().ids;
    store.forget_logged(&before).await.unwrap();
    let payment = payment_for(&order, Millis::now());
    store.receive_payment(&payment).await.unwrap();
    let applying = Applying { payment: &payment, order: &order, is_new: false };
    let applied = store.apply_payment(applying, &ActRequest::by("payment acme"), 2, &|| true).await.unwrap();
    assert!(matches!(applied, Applied::Ended(_)), "{applied:?}");
    // The oldest is that the payment was received.
    let oldest = store.unlogged(1).await.unwrap();
    let state = |entry: &Entry| match entry {
        Entry::Order(order) => order.status.to_string(),
        Entry::Payment(payment) => payment.state.clone(),
        other => panic!("{other:?}"),
    };
    let states: Vec<String> = oldest.entries.iter().map(state).collect();
    assert_eq!(states, ["paid", "applied"]);
    assert_eq!(oldest.ids.len(), 1, "the order's own change comes again");
}

/// The front that received it is 200 s ahead.
async fn a_payment_is_tried_again_in_time_whatever_clock_its_receiver_has(database: Database) {
    let (_world, store, sale) = world(database, 9, 1).await;
    let order = order(&sale.id, "ada", 1);
    let payment = payment_for(&order, Millis::now().plus(Duration::from_secs(200)));
    let received = store.receive_payment(&payment).await.unwrap();
    assert_eq!(received.received_at, payment.received_at);
    assert!(store.payments_due(&[], 10).await.unwrap().is_empty(), "the receiver tries first");
    let due = async || store.payments_due(&[], 10).await.ok()?.pop();
    let due_first = until("it is due", Duration::from_secs(20), due).await;
    assert!(store.postpone_payment(&due_first, Duration::from_secs(2), None, "no row").await.unwrap());
    assert!(store.payments_due(&[], 10).await.unwrap().is_empty(), "it was postponed");
    until("it is due again", Duration::from_secs(20), due).await;
}

fn change(order: &Order, act: Act, fence: i64) -> Change {
    Change { id: order.id, act, asked: ActRequest::by("op").because(Some("requested".into())), fence }
}

async fn an_order_makes_only_its_legal_transitions(database: Database) {
    let (_world, store, sale) = world(database, 9, 1).await;
    let order = order(&sale.id, "ada", 1);
    let act = async |act, fence| {
        store.change(&[change(&order, act, fence)], &|| true).await.unwrap().pop().expect("an answer")
    };
    assert_eq!(act(Act::Pay, 5).await, Changed::NoRow);
    store.record(&[claim(&order, 5)], &|| true).await.unwrap();
    assert!(
        matches!(act(Act::Refund, 5).await, Changed::Refused(row) if row.status == OrderStatus::Confirmed)
    );
    assert_eq!(act(Act::Pay, 4).await, Changed::Stale);
    let overdue = store.change(&[change(&order, Act::Pay, 6)], &|| false).await;
    assert!(matches!(overdue, Err(StoreError::LeaseEnded)), "{overdue:?}");
    assert!(store.history(order.id).await.unwrap().is_empty(), "nothing was written");
    assert!(matches!(act(Act::Pay, 6).await, Changed::Now(row) if row.status == OrderStatus::Paid));
    assert!(matches!(act(Act::Pay, 6).await, Changed::Already(row) if row.status == OrderStatus::Paid));
    assert!(matches!(act(Act::Cancel, 7).await, Changed::Refused(_)), "a paid order can only be refunded");
    assert_eq!(sold(&store, &sale).await, 1);
    assert!(matches!(act(Act::Refund, 7).await, Changed::Now(_)));
    assert_eq!(sold(&store, &sale).await, 0);
    for act_again in Act::ALL {
        assert!(!matches!(act(act_again, 8).await, Changed::Now(_)), "the order has ended");
    }
    let events = store.history(order.id).await.unwrap();
    let transitions: Vec<_> =
        events.iter().map(|event| (event.from, event.to, event.actor.as_str())).collect();
    assert_eq!(
        transitions,
        [(OrderStatus::Confirmed, OrderStatus::Paid, "op"), (OrderStatus::Paid, OrderStatus::Refunded, "op")]
    );
}

async fn an_ended_order_returns_its_units_once(database: Database) {
    let (_world, store, sale) = world(database, 9, 3).await;
    let order = Order { quantity: 3, limit: 3, ..order(&sale.id, "ada", 1) };
    store.record(&[claim(&order, 1)], &|| true).await.unwrap();
    assert_eq!(sold(&store, &sale).await, 3);
    let cancel = [change(&order, Act::Cancel, 2)];
    // Of many cancellations at once, one ends the order.
    let all = (0..8).map(|_| store.change(&cancel, &|| true));
    let ended = futures_util::future::join_all(all).await;
    let now = ended.iter().filter(|changed| matches!(changed.as_deref(), Ok([Changed::Now(_)]))).count();
    assert_eq!(now, 1, "{ended:?}");
    assert_eq!(sold(&store, &sale).await, 0);
    let owed = Return { id: order.id, sale: sale.id.clone(), user: order.user.clone(), line: 1 };
    assert_eq!(store.pending_returns(&[], 10).await.unwrap(), [owed]);
    assert!(store.pending_returns(std::slice::from_ref(&sale.id), 10).await.unwrap().is_empty());
    assert_eq!(store.totals(&sale.id).await.unwrap().returning_units.values().sum::<i64>(), 3);
    // A late copy of the message finds the row.
    let late = store.record(&[claim(&order, 3)], &|| true).await.unwrap();
    assert_eq!(late, [Recorded::Already(OrderStatus::Cancelled, None)]);
    assert_eq!(sold(&store, &sale).await, 0);
    // The user may buy as many units again, even with the same key.
    let again = Order { quantity: 3, limit: 3, key: order.key, ..self::order(&sale.id, "ada", 2) };
    assert_eq!(store.record(&[claim(&again, 4)], &|| true).await.unwrap(), [Recorded::Confirmed]);
    for seq in [7, 5] {
        store.finish_returns(&sale.id, Number { epoch: 1, seq }, &[order.id]).await.unwrap();
        assert!(store.pending_returns(&[], 10).await.unwrap().is_empty());
        let witnessed = store.sale(&sale.id).await.unwrap().expect("there").witnessed;
        assert_eq!(witnessed, Number { epoch: 1, seq: 7 }, "the highest stays");
    }
}

async fn an_order_can_be_cancelled_before_it_has_a_row(database: Database) {
    let (_world, store, sale) = world(database, 9, 1).await;
    let order = order(&sale.id, "ada", 1);
    let asked = ActRequest::by("buyer");
    // Of two at once, one writes the row and the other finds it.
    let claimed = claim(&order, 1);
    let cancel = || store.cancel_unrecorded(&claimed, &asked, &|| true);
    let (one, other) = tokio::join!(cancel(), cancel());
    let written: Vec<_> = [one, other].into_iter().filter_map(|row| row.expect("no error")).collect();
    assert!(matches!(&written[..], [row] if row.status == OrderStatus::Cancelled), "{written:?}");
    assert_eq!(cancel().await.unwrap(), None);
    let late = store.record(&[claim(&order, 2)], &|| true).await.unwrap();
    assert_eq!(late, [Recorded::Already(OrderStatus::Cancelled, None)]);
    assert_eq!(sold(&store, &sale).await, 0, "the order was never sold");
    assert_eq!(store.count_returns(&sale.id).await.unwrap(), 1, "the gate had taken its unit");
    assert_eq!(store.history(order.id).await.unwrap()[0].from, OrderStatus::Accepted);
}

async fn many_orders_expire_together_and_none_early(database: Database) {
    let (_world, store, sale) = world(database, 9, 2).await;
    let deadline = |seconds| TermsChange { pay_within_s: Some(Some(seconds)), ..Default::default() };
    let set_deadline = async |seconds| {
        let begun = store
            .begin_terms_change(&sale.id, &deadline(seconds), Millis(0), &ActRequest::by("op"))
            .await
            .unwrap();
        assert!(matches!(begun, Ok(BegunAct::New(_))), "{begun:?}");
    };
    set_deadline(3_600).await;
    let early = order(&sale.id, "early", 1);
    store.record(&[claim(&early, 1)], &|| true).await.unwrap();
    set_deadline(1).await;
    let due: Vec<Order> = ["ada", "bob", "ada"]
        .iter()
        .zip(2..)
        .map(|(user, seq)| Order { limit: 2, ..order(&sale.id, user, seq) })
        .collect();
    let claims: Vec<Claim> = due.iter().map(|order| claim(order, 1)).collect();
    let before = store.read_clock().await.unwrap();
    store.record(&claims, &|| true).await.unwrap();
    let after = store.read_clock().await.unwrap();
    let pay_by = store.order(due[0].id).await.unwrap().and_then(|row| row.pay_by).expect("a deadline");
    let second = Duration::from_secs(1);
    assert!((before.plus(second)..=after.plus(second)).contains(&pay_by), "{before} {pay_by} {after}");
    let all: Vec<Order> = due.iter().cloned().chain([early.clone()]).collect();
    let changes: Vec<Change> = all.iter().map(|order| change(order, Act::Expire, 2)).collect();
    let overdue = until("three orders are overdue", Duration::from_secs(20), async || {
        Some(store.overdue_orders(&[], 10).await.unwrap()).filter(|overdue| overdue.len() == 3)
    })
    .await;
    assert!(overdue.iter().all(|overdue| overdue.id != early.id));
    let changed = store.change(&changes, &|| true).await.unwrap();
    let now = |changed: &Changed| matches!(changed, Changed::Now(row) if row.status == OrderStatus::Expired);
    assert!(changed[..3].iter().all(now), "{changed:?}");
    assert!(matches!(&changed[3], Changed::Refused(_)), "its hour is not over: {changed:?}");
    assert_eq!(sold(&store, &sale).await, 1);
    assert_eq!(store.count_returns(&sale.id).await.unwrap(), 3);
    assert!(store.overdue_orders(&[], 10).await.unwrap().is_empty());
    let again = store.change(&changes[..3], &|| true).await.unwrap();
    assert!(again.iter().all(|changed| matches!(changed, Changed::Already(_))), "{again:?}");
}

/// The driver for MySQL does not know of a transaction whose BEGIN was cancelled before its answer had come.
#[tokio::test(flavor = "multi_thread")]
async fn a_reading_that_is_cancelled_while_it_begins_leaves_no_transaction_to_the_next() {
    let mut world = World::new(Database::Mariadb).await;
    let other = world.parts().await.store;
    let sale = sale(&world.name, 9, 1);
    other.create_sale(&sale).await.unwrap();
    world.set("database.connections=3");
    let proxy = behind_proxy(&mut world, "database.url").await;
    let store = world.parts().await.store;
    for round in 1..=6 {
        let order = order(&sale.id, &format!("user-{round}"), round);
        proxy.set(Weather::Slow(Duration::from_millis(10)));
        // The first one may open a connection, and any may be held up.
        let mut takes = Duration::MAX;
        for _ in 0..4 {
            let began = Instant::now();
            store.payment_entries(&[order.id]).await.unwrap();
            takes = takes.min(began.elapsed());
        }
        // BEGIN is the third of six round trips.
        for nth in 0..20 {
            let id = [order.id];
            let reading = store.payment_entries(&id);
            let _ = tokio::time::timeout(takes.mul_f64(0.3 + f64::from(nth) * 0.02), reading).await;
        }
        proxy.set(Weather::Fair);
        let read = async || {
            let readings = futures_util::future::join_all((0..6).map(|_| store.order(order.id))).await;
            readings.into_iter().filter(|row| row.as_ref().unwrap().is_some()).count()
        };
        // A transaction that is still open sees from now on what this reading sees.
        assert_eq!(read().await, 0);
        other.record(&[claim(&order, 5)], &|| true).await.unwrap();
        for _ in 0..5 {
            assert_eq!(read().await, 6, "round {round}");
        }
    }
}
