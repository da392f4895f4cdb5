//! Replays from the order log, a file, the outbox and the dead-letter queue. Replays are idempotent.

use std::collections::BTreeMap;
use std::time::Duration;

use doorbuster::control::Control;
use doorbuster::domain::{Act, ActRequest, Millis, OrderId, OrderStatus, Sale, SaleId, TermsChange};
use doorbuster::orders::Orders;
use doorbuster::process::{Parts, Role, Running};
use doorbuster::store::{OrderRow, Payment, PaymentKind, PaymentState, Store};
use sqlx::{Connection as _, Executor as _};

use crate::seams::queue::channel;
use crate::support::{Database, World, at_rest, buy, id, run, sale, until};

const LONG: Duration = Duration::from_secs(40);

/// Everything that the database has of a sale, except the times at which rows were written.
#[derive(Debug, PartialEq)]
struct Contents {
    orders: BTreeMap<OrderId, (OrderRow, Vec<doorbuster::store::OrderEvent>)>,
    terms: Option<Sale>,
    state: Option<doorbuster::domain::SaleState>,
    items: Vec<doorbuster::store::ItemRow>,
    acts: Vec<(String, String, Option<String>)>,
}

async fn contents(parts: &Parts, sale: &SaleId) -> Contents {
    let store = &parts.store;
    let mut orders = BTreeMap::new();
    for mut row in store.orders_after(sale, None, 10_000).await.unwrap() {
        let events = store.history(row.order.id).await.unwrap();
        // A replayed row is written later than the original.
        (row.recorded_at, row.updated_at, row.pay_by) = (Millis(0), Millis(0), None);
        orders.insert(row.order.id, (row, events));
    }
    let row = store.sale(sale).await.unwrap();
    let acts = store.acts(sale, 1_000).await.unwrap();
    Contents {
        orders,
        terms: row.as_ref().map(|row| row.sale.clone()),
        state: row.as_ref().map(|row| row.state),
        items: row.map(|row| row.items).unwrap_or_default(),
        acts: acts.into_iter().map(|act| (act.key, act.kind, act.result)).collect(),
    }
}

/// A consistent copy, as a nightly backup makes one.
async fn back_up(world: &World, to: &std::path::Path) {
    let url = world.config().database.url;
    let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
    let statement = format!("VACUUM INTO '{}'", to.display());
    connection.execute(sqlx::AssertSqlSafe(statement)).await.unwrap();
}

pub(crate) async fn act(running: &Running, sale: &Sale, order: OrderId, act: Act) {
    let parts = &running.parts;
    let orders = Orders::new(parts.gate.clone(), parts.store.clone(), parts.leases.clone());
    orders.act(&sale.id, order, act, &ActRequest::by("operator ada")).await.unwrap();
}

/// On return a payment for the order has been received and applied.
pub(crate) async fn pay(running: &Running, sale: &Sale, order: OrderId) {
    let payment = Payment {
        provider: "acme".into(),
        event_id: "evt-1".into(),
        kind: PaymentKind::Paid,
        sale: sale.id.clone(),
        order,
        user: None,
        state: PaymentState::Pending,
        new_order: None,
        detail: None,
        received_at: Millis::now(),
    };
    running.parts.store.receive_payment(&payment).await.unwrap();
    until("the payment is applied", LONG, async || {
        let row = running.parts.store.order(order).await.unwrap()?;
        (row.status == OrderStatus::Paid).then_some(())
    })
    .await;
}

/// On return the order log is complete.
pub(crate) async fn until_logged(running: &Running) {
    until("the order log is complete", LONG, async || {
        running.parts.store.unlogged(1).await.unwrap().ids.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_catches_up_from_the_order_log() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let shoes = sale(&world.name, 12, 1);
    world.open_sale(&running.parts, &shoes).await;
    let early = buy(&running, &shoes, 0..6).await;
    at_rest(&running, &shoes).await;
    act(&running, &shoes, early[0], Act::Pay).await;
    until_logged(&running).await;
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup.db");
    back_up(&world, &backup).await;

    act(&running, &shoes, early[0], Act::Refund).await;
    act(&running, &shoes, early[1], Act::Pay).await;
    act(&running, &shoes, early[2], Act::Cancel).await;
    let late = buy(&running, &shoes, 6..13).await;
    at_rest(&running, &shoes).await;
    act(&running, &shoes, late[0], Act::Cancel).await;
    let control = Control::new(running.parts.gate.clone(), running.parts.store.clone());
    control.restock(&shoes.id, &id("unit"), 3, &ActRequest::by("operator ada")).await.unwrap();
    let limit = TermsChange { limit_per_user: Some(2), ..Default::default() };
    control.change_terms(&shoes.id, &limit, &ActRequest::by("operator ada")).await.unwrap();
    control.pause(&shoes.id, Some("a moment".into()), &ActRequest::by("operator ada")).await.unwrap();
    let coats = sale(&format!("{}-coats", world.name), 2, 1);
    world.open_sale(&running.parts, &coats).await;
    buy(&running, &coats, 0..2).await;
    at_rest(&running, &shoes).await;
    at_rest(&running, &coats).await;
    until_logged(&running).await;
    let (lost_shoes, lost_coats) =
        (contents(&running.parts, &shoes.id).await, contents(&running.parts, &coats.id).await);
    assert_eq!((lost_shoes.orders.len(), lost_coats.orders.len()), (13, 2));
    running.stop().await;

    world.set(&format!("database.url=sqlite:{}", backup.display()));
    let parts = world.parts().await;
    assert_ne!(contents(&parts, &shoes.id).await, lost_shoes);
    let (code, out, err) = run(Some(&world), &["replay", "plan", "log", "--output", "json"]).await;
    let plan: serde_json::Value = serde_json::from_str(&out).expect(&err);
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!((&plan["would"]["inserted"], &plan["would"]["changed"]), (&9.into(), &3.into()), "{plan}");
    assert_ne!(contents(&parts, &shoes.id).await, lost_shoes, "a plan changes nothing");
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes", "--output", "json"]).await;
    let done: serde_json::Value = serde_json::from_str(&out).expect(&err);
    assert_eq!(code, 0, "{out}{err}");
    let counts = &done["report"]["counts"];
    assert_eq!((&counts["inserted"], &counts["changed"]), (&9.into(), &3.into()), "{done}");
    assert_eq!(contents(&parts, &shoes.id).await, lost_shoes);
    assert_eq!(contents(&parts, &coats.id).await, lost_coats);

    // The last few messages alone bring nothing new.
    let (code, out, err) = run(Some(&world), &["replay", "plan", "log", "--offset", "5"]).await;
    assert!(
        code == 0 && !out.contains("inserted or queued") && !out.contains("brought up to date"),
        "{out}{err}"
    );
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes", "--output", "json"]).await;
    let again: serde_json::Value = serde_json::from_str(&out).expect(&err);
    let counts = &again["report"]["counts"];
    assert_eq!(
        (code, &counts["inserted"], &counts["changed"], &counts["others"]),
        (0, &0.into(), &0.into(), &0.into()),
        "{again}"
    );
    assert_eq!(contents(&parts, &shoes.id).await, lost_shoes);
    // The gate already has the units that the log returns.
    let running = world.running().await;
    at_rest(&running, &shoes).await;
    let (code, out, _) = run(Some(&world), &["replay", "list"]).await;
    assert!(code == 0 && out.matches(" done ").count() == 2, "{out}");
    running.stop().await;
}

/// For a while the gate has a unit too many. The order that was accepted and then refused must stay refused.
#[tokio::test(flavor = "multi_thread")]
async fn failed_orders_stay_failed_and_an_end_logged_late_takes_no_unit() {
    let mut world = World::new(Database::Sqlite).await;
    // Ends are logged late, after the order that got the unit.
    world.set("maintenance.every_ms=5000");
    let running = world.running().await;
    let sale = sale(&world.name, 1, 1);
    world.open_sale(&running.parts, &sale).await;
    let folder = tempfile::tempdir().unwrap();
    let first = buy(&running, &sale, 0..1).await;
    at_rest(&running, &sale).await;
    let backup = folder.path().join("backup.db");
    back_up(&world, &backup).await;
    // One unit is sold three times: the log has each order before the end of the previous one.
    act(&running, &sale, first[0], Act::Cancel).await;
    let second = buy(&running, &sale, 1..2).await;
    at_rest(&running, &sale).await;
    act(&running, &sale, second[0], Act::Cancel).await;
    buy(&running, &sale, 2..3).await;
    at_rest(&running, &sale).await;
    let left = format!("HSET {}:{{{}}}:items unit 1", world.name, sale.id);
    let _: i64 = crate::support::ask_redis(&crate::support::servers().redis, &left).await;
    let phantom = buy(&running, &sale, 3..4).await;
    until("the phantom order is refused", LONG, async || {
        let row = running.parts.store.order(phantom[0]).await.unwrap()?;
        (row.status == OrderStatus::Failed).then_some(())
    })
    .await;
    until_logged(&running).await;
    let lost = contents(&running.parts, &sale.id).await;
    running.stop().await;
    world.set(&format!("database.url=sqlite:{}", backup.display()));
    let parts = world.parts().await;
    // One order at a time, as the batches of a log of many thousand orders would split them.
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes", "--rate", "1"]).await;
    assert_eq!(code, 0, "{out}{err}");
    let mut now = contents(&parts, &sale.id).await;
    // The worker paused the sale in the gate. That is not an act, so the log does not have it.
    now.state = lost.state;
    assert_eq!(now, lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_moves_between_databases_as_a_file() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    let orders = buy(&running, &sale, 0..5).await;
    at_rest(&running, &sale).await;
    act(&running, &sale, orders[0], Act::Pay).await;
    act(&running, &sale, orders[1], Act::Cancel).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sale.ndjson").display().to_string();
    let export = ["export", "--sale", sale.id.as_str(), "--file", &file];
    let (code, _, err) = run(Some(&world), &export).await;
    assert!(code == 0 && err.contains("5 orders, 0 in flight"), "{err}");
    let expected = contents(&running.parts, &sale.id).await;

    let mut other = World::new(Database::Sqlite).await;
    other.set(&format!("redis.prefix={}", world.name));
    let parts = other.parts().await;
    let mut lines = std::fs::read_to_string(&file).unwrap();
    lines.insert_str(0, "\n{\"kind\":\"order\"}\nno entry\n");
    std::fs::write(&file, lines).unwrap();
    let (code, out, err) = run(Some(&other), &["replay", "run", "file", &file, "--yes"]).await;
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.contains("left: 2: ") && out.contains("left: 3: ") && out.contains("5 inserted"), "{out}");
    assert_eq!(contents(&parts, &sale.id).await, expected);

    // A full disk and a missing folder are reported as errors.
    let (code, _, err) =
        run(Some(&world), &["export", "--sale", sale.id.as_str(), "--file", "/dev/full"]).await;
    assert!(code == 1 && err.contains("/dev/full could not be written"), "{err}");
    let nowhere = folder.path().join("no/such/folder").display().to_string();
    let (code, _, err) = run(Some(&world), &["export", "--sale", sale.id.as_str(), "--file", &nowhere]).await;
    assert!(code == 1 && err.contains("could not be written"), "{err}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_lost_its_queue_is_refilled_from_the_outbox() {
    let mut world = World::new(Database::Sqlite).await;
    // The sweep would publish the orders itself, after a while.
    world.set("sweep.every_ms=60000");
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 40, 1);
    world.open_sale(&front.parts, &sale).await;
    buy(&front, &sale, 0..30).await;
    let broker = channel(&world).await;
    for queue in ["orders", "log", "dead"] {
        let name = format!("{}.{queue}", world.name);
        broker.queue_delete(name.as_str().into(), Default::default()).await.unwrap();
    }
    let filtered = ["replay", "plan", "outbox", "--user", "user7", "--output", "json"];
    let (code, out, err) = run(Some(&world), &filtered).await;
    assert!(code == 0 && out.contains("\"inserted\":1"), "{out}{err}");
    for _ in 0..2 {
        let (code, out, err) = run(Some(&world), &["replay", "run", "outbox", "--yes"]).await;
        assert!(code == 0 && out.contains("30 inserted"), "{out}{err}");
    }
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    assert_eq!(at_rest(&worker, &sale).await.live_orders, 30);
    let (code, out, err) = run(Some(&world), &["replay", "plan", "outbox"]).await;
    assert!(code == 0 && out.contains("nothing to do"), "{out}{err}");
    worker.stop().await;
    front.stop().await;
}

/// From one kind of database to another: sales in every state, payments, and stock that went up and down.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_reproduces_a_database_on_another_kind_of_server() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let (shoes, coats) = (sale(&world.name, 10, 1), sale(&format!("{}-coats", world.name), 3, 1));
    for sale in [&shoes, &coats] {
        world.open_sale(&running.parts, sale).await;
    }
    let orders = buy(&running, &shoes, 0..10).await;
    buy(&running, &coats, 0..2).await;
    at_rest(&running, &shoes).await;
    for order in &orders[..5] {
        act(&running, &shoes, *order, Act::Cancel).await;
    }
    at_rest(&running, &shoes).await;
    let request = ActRequest::by("operator ada");
    let control = Control::new(running.parts.gate.clone(), running.parts.store.clone());
    // The stock is now five. The ten orders that were once live would no longer fit.
    control.restock(&shoes.id, &id("unit"), -5, &request).await.unwrap();
    pay(&running, &shoes, orders[9]).await;
    at_rest(&running, &coats).await;
    control.close(&coats.id, &request).await.unwrap();
    control.archive(&coats.id, &request).await.unwrap();
    until_logged(&running).await;
    let old = [contents(&running.parts, &shoes.id).await, contents(&running.parts, &coats.id).await];
    let paid = running.parts.store.payments_of(&[orders[9]]).await.unwrap();
    running.stop().await;

    let other = World::new(Database::Mariadb).await;
    world.set(&format!("database.url={}", other.config().database.url));
    let parts = world.parts().await;
    for _ in 0..2 {
        let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
        assert_eq!(code, 0, "{out}{err}");
        assert_eq!([contents(&parts, &shoes.id).await, contents(&parts, &coats.id).await], old);
        assert_eq!(parts.store.payments_of(&[orders[9]]).await.unwrap(), paid);
    }
}

/// A message from the queue is persisted into a restored database before the replay has finished.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_recorded_before_its_row_wins_over_a_late_message_and_poison_fails_alone() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100");
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&front.parts, &sale).await;
    let orders = buy(&front, &sale, 0..4).await;
    // No worker runs: the orders have no rows yet, and one is cancelled before it is confirmed.
    act(&front, &sale, orders[1], Act::Cancel).await;
    until_logged(&front).await;
    front.stop().await;

    let other = World::new(Database::Postgres).await;
    world.set(&format!("database.url={}", other.config().database.url));
    let parts = world.parts().await;
    let entry = ["replay", "run", "log", "--yes", "--order"];
    let order = |nth: usize| orders[nth].to_string();
    // The row as a worker would write it from the message alone.
    let ticket = parts.gate.ticket(&sale.id, orders[0]).await.unwrap().expect("in flight").order;
    let cancelled = doorbuster::domain::Order {
        id: orders[1],
        user: id("user1"),
        number: doorbuster::domain::Number { epoch: 1, seq: 3 },
        ..ticket
    };
    // A store that has not asked the gate: no other one writes to a database that is behind.
    let store = Store::connect(&world.config().store()).await.unwrap();
    store.create_sale(&sale).await.unwrap();
    // One order does not bring the database up to date.
    let (code, out, err) = run(Some(&world), &[&entry[..], &[&order(0)]].concat()).await;
    assert!(code == 3 && out.contains("1 inserted") && out.contains("the database is behind"), "{out}{err}");
    let claim = doorbuster::store::Claim { order: cancelled, fence: 1 };
    store.record(&[claim], &|| true).await.unwrap();
    assert_eq!(store.order(orders[1]).await.unwrap().expect("a row").status, OrderStatus::Confirmed);

    let mut database = sqlx::PgConnection::connect(&world.config().database.url).await.unwrap();
    let bad = "CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               IF NEW.user_id = 'user2' THEN RAISE EXCEPTION 'poison'; END IF; RETURN NEW; END $$";
    database.execute(bad).await.unwrap();
    let trigger = "CREATE TRIGGER bad BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION bad()";
    database.execute(trigger).await.unwrap();
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(
        code == 3 && out.contains(&format!("left: {}", orders[2])) && out.contains("poison"),
        "{out}{err}"
    );
    let status = async |nth: usize| store.order(orders[nth]).await.unwrap().map(|row| row.status);
    assert_eq!(status(1).await, Some(OrderStatus::Cancelled), "{out}");
    assert_eq!((status(2).await, status(3).await), (None, Some(OrderStatus::Confirmed)), "{out}");
    database.execute("DROP TRIGGER bad ON orders").await.unwrap();
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 0 && out.contains("1 inserted"), "{out}{err}");
}
