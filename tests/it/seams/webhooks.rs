//! What is written down for webhooks, and which of it is due, on each of the three databases.

use std::time::Duration;

use doorbuster::domain::{
    Act, ActRequest, EventType, EventTypes, Millis, Number, Order, OrderEntry, OrderId, OrderStatus,
    SaleEvent, SaleId, SaleState, Step,
};
use doorbuster::store::{Change, EndpointState, NotTaken, Restore, Store, StoreError, WebhookDelivery};

use crate::faults::stalls::Session;
use crate::seams::store::{claim, on_every_database, orders, world};
use crate::support::{Database, order};

on_every_database!(
    states_that_wait_hide_no_others,
    what_is_rolled_back_or_happens_while_all_are_off_is_not_delivered,
    what_a_replay_restores_is_delivered_with_the_same_ids,
    what_happens_to_a_sale_is_delivered_once,
    an_endpoint_is_given_the_types_that_were_chosen,
    of_two_changes_of_the_secrets_at_once_one_counts,
);

const SHOP: &str = "shop";

async fn add(store: &Store, id: &str) {
    assert!(store.add_endpoint(id, "https://shop.example/", "whsec_x", &EventTypes::all()).await.unwrap());
}

fn pay(order: &Order) -> Change {
    Change { id: order.id, act: Act::Pay, asked: ActRequest::by("op"), fence: 2 }
}

fn not_taken(order: &Order, tries: i32, due: Option<Millis>) -> NotTaken {
    NotTaken { subject: order.id.uuid(), version: 1, tries, due, why: "500".into() }
}

/// The orders that are due at the shop, with the versions of their states.
async fn due(store: &Store, limit: u64) -> Vec<(OrderId, i32)> {
    let due = store.due_deliveries(SHOP, limit).await.unwrap();
    due.into_iter().map(|delivery| (delivery.subject.into(), delivery.version)).collect()
}

async fn states_that_wait_hide_no_others(database: Database) {
    let (_world, store, sale) = world(database, 500, 1).await;
    add(&store, SHOP).await;
    let blocked = orders(&sale, 0..30);
    let claims: Vec<_> = blocked.iter().map(|order| claim(order, 1)).collect();
    store.record(&claims, &|| true).await.unwrap();
    assert_eq!(store.make_deliveries(1_000).await.unwrap(), 30);
    assert_eq!(due(&store, 100).await.len(), 30);
    let later = Millis::now().plus(Duration::from_secs(3_600));
    let refused: Vec<_> = blocked.iter().map(|order| not_taken(order, 0, Some(later))).collect();
    store.record_deliveries(SHOP, &[], &refused).await.unwrap();
    store.change(&blocked.iter().map(pay).collect::<Vec<_>>(), &|| true).await.unwrap();
    assert_eq!(store.make_deliveries(1_000).await.unwrap(), 30);
    assert_eq!(due(&store, 100).await, [], "each waits for an earlier state");
    let other = order(&sale.id, "late", 900);
    store.record(&[claim(&other, 1)], &|| true).await.unwrap();
    store.record(&[claim(&other, 1)], &|| true).await.unwrap();
    assert_eq!(store.make_deliveries(1_000).await.unwrap(), 1, "a repeat is no new state");
    assert_eq!(due(&store, 5).await, [(other.id, 1)]);
    // What was taken, and what was given up, holds nothing back.
    store.record_deliveries(SHOP, &[(other.id.uuid(), 1), (blocked[0].id.uuid(), 1)], &[]).await.unwrap();
    assert_eq!(due(&store, 5).await, [(blocked[0].id, 2)]);
    store
        .record_deliveries(SHOP, &[(blocked[0].id.uuid(), 2)], &[not_taken(&blocked[1], 1, None)])
        .await
        .unwrap();
    assert_eq!(due(&store, 5).await, [(blocked[1].id, 2)]);
    let undelivered = store.waiting_deliveries().await.unwrap().remove(SHOP).unwrap();
    assert_eq!((undelivered.waiting, undelivered.given_up), (57, 1));
    assert!(undelivered.error.is_some());
    assert_eq!(store.redeliver(SHOP).await.unwrap(), 29);
    let all = store.due_deliveries(SHOP, 100).await.unwrap();
    assert_eq!(all.len(), 58);
    assert!(all.iter().all(|delivery| delivery.tries == 0), "as if they were new");
    // A try of before that ends only now: they stay due.
    store.record_deliveries(SHOP, &[], &[not_taken(&blocked[2], 1, None)]).await.unwrap();
    assert_eq!(store.due_deliveries(SHOP, 100).await.unwrap(), all);
    assert!(store.remove_endpoint(SHOP).await.unwrap());
    assert!(store.waiting_deliveries().await.unwrap().is_empty());
}

async fn what_is_rolled_back_or_happens_while_all_are_off_is_not_delivered(database: Database) {
    let (_world, store, sale) = world(database, 500, 1).await;
    add(&store, SHOP).await;
    add(&store, "other").await;
    let [one, two, three] = [1, 2, 3].map(|seq| order(&sale.id, &format!("user{seq}"), seq));
    let refused = store.record(&[claim(&one, 1)], &|| false).await;
    assert!(matches!(refused, Err(StoreError::LeaseEnded)), "{refused:?}");
    assert_eq!(store.make_deliveries(10).await.unwrap(), 0);
    assert!(store.switch_endpoint("other", &EndpointState::Off("a test".into())).await.unwrap());
    store.record(&[claim(&one, 1)], &|| true).await.unwrap();
    assert_eq!(store.make_deliveries(10).await.unwrap(), 1);
    let given = store.due_deliveries(SHOP, 10).await.unwrap().remove(0);
    let confirmed = EventType::Order(OrderStatus::Confirmed);
    assert_eq!((given.subject, given.version, given.event), (one.id.uuid(), 1, confirmed));
    assert!(store.due_deliveries("other", 10).await.unwrap().is_empty(), "it is off");
    assert!(store.has_endpoints().await.unwrap());
    store.switch_endpoint(SHOP, &EndpointState::Off("a test".into())).await.unwrap();
    assert!(!store.has_endpoints().await.unwrap());
    store.record(&[claim(&two, 1)], &|| true).await.unwrap();
    assert_eq!(store.make_deliveries(10).await.unwrap(), 1, "it was written down, and nobody is given it");
    store.announce_to_webhooks(false);
    store.record(&[claim(&three, 1)], &|| true).await.unwrap();
    assert_eq!(store.make_deliveries(10).await.unwrap(), 0);
    store.switch_endpoint(SHOP, &EndpointState::On).await.unwrap();
    assert_eq!(due(&store, 10).await, [(one.id, 1)], "what waited before");
    // For how long it has failed.
    assert_eq!(store.note_endpoint(SHOP, true).await.unwrap(), Duration::ZERO);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(store.note_endpoint(SHOP, true).await.unwrap() >= Duration::from_millis(20));
    store.note_endpoint(SHOP, false).await.unwrap();
    assert_eq!(store.endpoints().await.unwrap()[1].failing_since, None);
}

/// An order as the log has it, whose states after the first are these.
fn logged(order: &Order, states: &[OrderStatus], begins: bool) -> Restore {
    let all = [&[OrderStatus::Confirmed], states].concat();
    let history = all.windows(2).zip(2..).map(|(states, version)| Step {
        version,
        from: states[0],
        to: states[1],
        by: "op".into(),
        reason: None,
        at: Millis::now(),
    });
    let entry = OrderEntry {
        order: order.clone(),
        status: all[all.len() - 1],
        failure: None,
        version: i32::try_from(all.len()).unwrap(),
        recorded_at: Millis::now(),
        updated_at: Millis::now(),
        pay_by: None,
        history: history.collect(),
    };
    Restore { entry, begins, fence: 3 }
}

async fn what_a_replay_restores_is_delivered_with_the_same_ids(database: Database) {
    let (_world, store, sale) = world(database, 500, 1).await;
    add(&store, SHOP).await;
    let [known, lost, waiting] = [1, 2, 3].map(|seq| order(&sale.id, &format!("user{seq}"), seq));
    store.record(&[claim(&known, 1)], &|| true).await.unwrap();
    store.change(&[pay(&known)], &|| true).await.unwrap();
    store.make_deliveries(10).await.unwrap();
    store.record_deliveries(SHOP, &[(known.id.uuid(), 1), (known.id.uuid(), 2)], &[]).await.unwrap();
    let restores = [
        logged(&known, &[OrderStatus::Paid, OrderStatus::Refunded], false),
        logged(&lost, &[OrderStatus::Paid], false),
        logged(&waiting, &[], true),
    ];
    for _ in 0..2 {
        store.restore_orders(&restores, false, &|| true).await.unwrap();
    }
    assert_eq!(store.make_deliveries(10).await.unwrap(), 4);
    let mut given = due(&store, 10).await;
    given.sort();
    assert_eq!(given, [(known.id, 3), (lost.id, 1), (lost.id, 2), (waiting.id, 1)]);
}

/// What the shop is given of sales, in the order in which it happened. It takes it.
async fn taken_of_sales(store: &Store) -> Vec<SaleEvent> {
    store.make_deliveries(100).await.unwrap();
    let due = store.due_deliveries(SHOP, 100).await.unwrap();
    let taken: Vec<_> = due.iter().map(|delivery| (delivery.subject, delivery.version)).collect();
    store.record_deliveries(SHOP, &taken, &[]).await.unwrap();
    let event = |delivery: &WebhookDelivery| match delivery.event {
        EventType::Sale(event) => Some(event),
        EventType::Order(_) => None,
    };
    due.iter().filter_map(event).collect()
}

async fn what_happens_to_a_sale_is_delivered_once(database: Database) {
    let (_world, store, sale) = world(database, 500, 1).await;
    add(&store, SHOP).await;
    let at = |seq| Number { epoch: 1, seq };
    let set = async |state, seq| store.set_sale_state(&sale.id, state, at(seq)).await.unwrap();
    set(SaleState::Open, 1).await;
    set(SaleState::Paused, 10).await;
    set(SaleState::Paused, 10).await;
    set(SaleState::Open, 5).await;
    assert_eq!(
        taken_of_sales(&store).await,
        [SaleEvent::Opened, SaleEvent::Paused],
        "repeats and older changes are no events"
    );
    set(SaleState::Open, 20).await;
    set(SaleState::Closed, 30).await;
    set(SaleState::Archived, 30).await;
    assert_eq!(taken_of_sales(&store).await, [SaleEvent::Resumed, SaleEvent::Closed]);

    // Sold out before anybody looked is not news.
    let other: SaleId = "other".parse().unwrap();
    store.note_sold_out(&other, true).await.unwrap();
    assert_eq!(taken_of_sales(&store).await, []);
    for is_sold_out in [true, false, false, true, true] {
        store.note_sold_out(&other, is_sold_out).await.unwrap();
    }
    assert_eq!(taken_of_sales(&store).await, [SaleEvent::SoldOut]);
    for is_broken in [true, true, false] {
        store.note_broken_books(&other, is_broken).await.unwrap();
    }
    store.note_broken_books(&sale.id, true).await.unwrap();
    assert_eq!(taken_of_sales(&store).await, [SaleEvent::BooksBroken, SaleEvent::BooksBroken]);
    store.announce_to_webhooks(false);
    store.note_broken_books(&other, true).await.unwrap();
    assert_eq!(taken_of_sales(&store).await, []);
}

async fn an_endpoint_is_given_the_types_that_were_chosen(database: Database) {
    let (_world, store, sale) = world(database, 500, 1).await;
    let chosen: EventTypes = "order.paid,sale.*".parse().unwrap();
    assert!(store.add_endpoint(SHOP, "https://shop.example/", "whsec_x", &chosen).await.unwrap());
    let order = order(&sale.id, "ada", 1);
    store.record(&[claim(&order, 1)], &|| true).await.unwrap();
    store.change(&[pay(&order)], &|| true).await.unwrap();
    store.set_sale_state(&sale.id, SaleState::Open, Number { epoch: 1, seq: 9 }).await.unwrap();
    assert_eq!(store.make_deliveries(10).await.unwrap(), 3);
    let due = store.due_deliveries(SHOP, 10).await.unwrap();
    let mut events: Vec<_> = due.iter().map(|delivery| delivery.event.to_string()).collect();
    events.sort();
    assert_eq!(
        events,
        ["order.paid", "sale.opened"],
        "the state before it was not wanted, and holds nothing back"
    );
    assert!(store.set_endpoint_types(SHOP, &EventTypes::all()).await.unwrap());
    assert!(store.endpoints().await.unwrap()[0].types.are_all());
    assert!(!store.set_endpoint_types("other", &chosen).await.unwrap());
}

async fn of_two_changes_of_the_secrets_at_once_one_counts(database: Database) {
    let (_world, store, _sale) = world(database, 5, 1).await;
    add(&store, SHOP).await;
    let (one, two) = (["whsec_x".to_owned()], ["whsec_y".to_owned(), "whsec_x".to_owned()]);
    assert!(store.set_endpoint_secrets(SHOP, &one, &two).await.unwrap());
    assert!(!store.set_endpoint_secrets(SHOP, &one, &one).await.unwrap(), "it was read before that");
    assert_eq!(store.endpoints().await.unwrap()[0].secrets, two);
    // As many times as an operator likes.
    assert!(store.set_endpoint_secrets(SHOP, &two, &two).await.unwrap());
}

/// A front of an older build leads while workers of a newer one write.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_a_later_build_waits_for_a_build_that_knows_it() {
    let (world, store, sale) = world(Database::Postgres, 500, 1).await;
    add(&store, SHOP).await;
    add(&store, "other").await;
    let mut sql = Session::open(&world).await;
    let types = "UPDATE webhook_endpoints SET types = 'order.confirmed sale.gone' WHERE id = 'other'";
    sql.execute(types.into()).await;
    let orders = orders(&sale, 0..2);
    let claims: Vec<_> = orders.iter().map(|order| claim(order, 1)).collect();
    store.record(&claims, &|| true).await.unwrap();
    let (later, known) = (&orders[0], &orders[1]);
    let of_later = |table: &str, status: &str| {
        let id = later.id.uuid();
        format!("UPDATE {table} SET status = '{status}' WHERE order_id = '{id}' AND version = 1")
    };
    sql.execute(of_later("webhook_events", "shipped")).await;
    store.change(&orders.iter().map(pay).collect::<Vec<_>>(), &|| true).await.unwrap();

    assert_eq!(store.make_deliveries(10).await.unwrap(), 2, "the other order has two");
    assert_eq!(store.make_deliveries(10).await.unwrap(), 0);
    assert_eq!(store.unknown_events().await.unwrap(), 1);
    assert_eq!(due(&store, 10).await, [(known.id, 1), (known.id, 2)]);
    let others = store.due_deliveries("other", 10).await.unwrap();
    assert_eq!(others.len(), 1, "{others:?}");
    // A build that knows it leads for a while.
    sql.execute(of_later("webhook_events", "confirmed")).await;
    assert_eq!(store.make_deliveries(10).await.unwrap(), 2);
    sql.execute(of_later("webhook_deliveries", "shipped")).await;
    assert_eq!(due(&store, 10).await, [(known.id, 1), (known.id, 2)], "what follows waits as well");
}
