//! Orders from HTTP to row, on each of the three databases.

use std::time::Duration;

use doorbuster::control::Control;
use doorbuster::domain::{Act, ActRequest, Failure, Millis, Number, OrderStatus, SaleState, Verdict};
use doorbuster::gate::Versions;
use doorbuster::lease::LeaseOptions;
use doorbuster::process::{Role, Running};
use doorbuster::queue::Publisher;
use doorbuster::settlement::Settler;
use doorbuster::store::Recorded;

use super::control::{admit, left};
use crate::recovery::repair::act;
use crate::seams::store::claim;
use crate::support::{
    Backup, Buyer, Database, Doorbuster, World, ask_redis, at_rest, attempt, order, request, run, sale,
    servers, until,
};

async fn sells_out(database: Database) {
    let world = World::new(database).await;
    let running = world.running().await;
    let sale = sale(&world.name, 20, 1);
    world.open_sale(&running.parts, &sale).await;
    let buyers: Vec<_> = (0..60).map(|nth| Buyer::of(&running, &format!("user{nth}"))).collect();
    let answers =
        futures_util::future::join_all(buyers.iter().map(|buyer| buyer.buy(sale.id.as_str(), "k"))).await;
    let count = |status: u16, code: &str| {
        answers.iter().filter(|answer| answer.status == status && answer.code() == code).count()
    };
    assert_eq!((count(202, ""), count(409, "sold_out")), (20, 40));
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.live_orders, books.items[0].left), (20, 0));
    for (buyer, answer) in buyers.iter().zip(&answers).filter(|(_, answer)| answer.status == 202) {
        let read = buyer.get(&answer.headers["location"]).await;
        assert_eq!(read.json["status"], "confirmed", "{}", read.text);
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_sells_out_on_sqlite() {
    sells_out(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_sells_out_on_postgres() {
    sells_out(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_sells_out_on_mariadb() {
    sells_out(Database::Mariadb).await;
}

/// Publishes an order as a front would, but without asking the gate.
async fn publish(world: &World, order: &doorbuster::domain::Order) {
    let publisher = Publisher::open(world.config().queue());
    tokio::time::timeout(Duration::from_secs(60), publisher.wait_until_up()).await.expect("the broker");
    publisher.publish(std::slice::from_ref(order)).await.expect("published");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_with_one_unit_too_many_fails_one_order_and_pauses_the_sale() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let mut sale = sale(&world.name, 3, 1);
    running.parts.store.create_sale(&sale).await.unwrap();
    sale.items[0].stock = 4;
    world.load(&running.parts.gate, &sale).await;
    for nth in 0..4 {
        let answer = Buyer::of(&running, &format!("user{nth}")).buy(sale.id.as_str(), "k").await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }
    let stopped = until("the worker pauses the sale", Duration::from_secs(30), async || {
        let gate = running.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
        (gate.state == SaleState::Paused && gate.waiting == 0).then_some(gate)
    })
    .await;
    assert_eq!(stopped.items[0].left, 0, "the phantom unit is not sold again");
    let totals = running.parts.store.totals(&sale.id).await.unwrap();
    assert_eq!((totals.live_orders, totals.failed_orders), (3, 1), "one order fails");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_users_second_order_fails_and_the_first_takes_its_place() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    // This order is persisted without the gate, as if the gate had forgotten it.
    let first = order(&sale.id, "ada", 1);
    let forgotten = doorbuster::domain::Order { number: Number { epoch: 0, seq: 1 }, ..first };
    publish(&world, &forgotten).await;
    until("the first has its row", Duration::from_secs(30), async || {
        running.parts.store.order(forgotten.id).await.unwrap()
    })
    .await;
    // Its number is older than the gate's, so the gate adopts it. Then the gate forgets it again.
    let key = |name: &str| format!("{}:{{{}}}:{name}", world.name, sale.id);
    until("the first order is adopted", Duration::from_secs(30), async || {
        let forgot: i64 = ask_redis(&servers().redis, &format!("HDEL {} ada", key("users"))).await;
        (forgot == 1).then_some(())
    })
    .await;
    let _: i64 = ask_redis(&servers().redis, &format!("HINCRBY {} unit 1", key("items"))).await;
    let ada = Buyer::of(&running, "ada");
    let second = ada.buy(sale.id.as_str(), "new").await;
    assert_eq!(second.status, 202);
    let read = until("the second fails", Duration::from_secs(30), async || {
        Some(ada.get(&second.headers["location"]).await).filter(|answer| answer.json["status"] == "failed")
    })
    .await;
    assert_eq!(read.json["failure"], Failure::OverLimit.as_str());
    at_rest(&running, &sale).await;
    let again = ada.buy(sale.id.as_str(), "another").await;
    assert_eq!((again.code(), again.order_id()), ("already_ordered", forgotten.id.to_string().as_str()));
    running.stop().await;
}

/// The gate learns of the order that won as well. If that one could end at the same moment, its user would keep an order
/// that has ended, and its unit would never be sold.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_gate_learns_of_a_winner_is_still_true_then() {
    let world = World::new(Database::Sqlite).await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&parts, &sale).await;
    // The gate has forgotten the first order.
    let first =
        doorbuster::domain::Order { number: Number { epoch: 0, seq: 1 }, ..order(&sale.id, "ada", 1) };
    parts.store.record(&[claim(&first, 1)], &|| true).await.unwrap();
    let Verdict::Accepted(second) = admit(&parts, &sale, "ada", Some("k"), 1).await else {
        panic!("refused")
    };
    let recorded = parts.store.record(&[claim(&second, 2)], &|| true).await.unwrap();
    assert!(matches!(recorded[..], [Recorded::Failed(Failure::OverLimit, Some(_))]), "{recorded:?}");

    let settler = Settler { gate: &parts.gate, store: &parts.store, leases: &parts.leases };
    let settle = || settler.settle_order(&second, Some(Failure::OverLimit));
    let acting = LeaseOptions::lasting(Duration::from_secs(30));
    let lease = parts.leases.take(sale.id.as_str(), ["ada"], acting).await.unwrap().guard.expect("free");
    assert!(!settle().await.unwrap(), "somebody may end the first order now");
    assert_eq!(parts.gate.in_flight(&sale.id).await.unwrap().len(), 1);
    lease.release().await.unwrap();
    act(&parts, &sale, first.id, Act::Cancel).await;
    assert!(settle().await.unwrap());
    assert!(settle().await.unwrap(), "it may be repeated");
    assert_eq!((left(&parts, &sale).await, parts.gate.in_flight(&sale.id).await.unwrap().len()), (5, 0));
    assert!(matches!(admit(&parts, &sale, "ada", Some("another"), 1).await, Verdict::Accepted(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_user_delays_only_their_own_delivery() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let lease = running.parts.leases.take(sale.id.as_str(), ["ada"], LeaseOptions::default()).await.unwrap();
    let ada = Buyer::of(&running, "ada").buy(sale.id.as_str(), "k").await;
    let bob = Buyer::of(&running, "bob").buy(sale.id.as_str(), "k").await;
    let status = async |answer: &crate::support::Answer| {
        let id = answer.order_id().parse().unwrap();
        running.parts.store.order(id).await.unwrap().map(|row| row.status)
    };
    until("bob's order is confirmed", Duration::from_secs(30), async || status(&bob).await).await;
    assert_eq!(status(&ada).await, None, "the delivery is held while another process has the lease");
    drop(lease);
    let confirmed =
        until("the held order is confirmed", Duration::from_secs(30), async || status(&ada).await).await;
    assert_eq!(confirmed, OrderStatus::Confirmed);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_waits_for_its_tables_and_loses_nothing() {
    let world = World::new(Database::Postgres).await;
    let running = world.running_as(Role::Front).await;
    // A process of its own has metrics of its own.
    let worker = Doorbuster::start(&world, "worker").await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let database = Backup::of(&world);
    database.execute_in_place("ALTER TABLE orders RENAME TO orders_elsewhere").await;
    let accepted = Buyer::of(&running, "ada").buy(sale.id.as_str(), "k").await;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    until("the worker has tried several times", Duration::from_secs(30), async || {
        let metrics = request(worker.operations, "GET", "/metrics", &[], b"").await.text;
        let waits = metrics
            .lines()
            .find_map(|line| line.strip_prefix("doorbuster_worker_waits_total ")?.parse().ok());
        waits.filter(|waits: &u64| *waits >= 3)
    })
    .await;
    database.execute_in_place("ALTER TABLE orders_elsewhere RENAME TO orders").await;
    let books = at_rest(&running, &sale).await;
    assert_eq!((books.live_orders, books.failed_orders), (1, 0), "{books:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_starts_before_the_first_migration_waits_for_it() {
    let world = World::new(Database::Postgres).await;
    let running = Running::start(&world.config(), Role::Both).await.expect("starts");
    until("readiness says what to do", Duration::from_secs(30), async || {
        let ready = request(running.operations, "GET", "/readyz", &[], b"").await;
        (ready.status == 503 && ready.text.contains("run `doorbuster migrate`")).then_some(())
    })
    .await;
    let (code, out, err) = run(Some(&world), &["migrate"]).await;
    assert_eq!(code, 0, "{out}{err}");
    running.publisher_is_up(Duration::from_secs(60)).await.expect("the broker");
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let accepted = Buyer::of(&running, "ada").buy(sale.id.as_str(), "k").await;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    assert_eq!(at_rest(&running, &sale).await.live_orders, 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_cannot_be_persisted_is_parked_alone() {
    let world = World::new(Database::Postgres).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let lease =
        running.parts.leases.take(sale.id.as_str(), ["ada", "bob"], LeaseOptions::default()).await.unwrap();
    let ada = Buyer::of(&running, "ada").buy(sale.id.as_str(), "k").await;
    let bob = Buyer::of(&running, "bob").buy(sale.id.as_str(), "k").await;
    // A row with this id, in a state that this build does not know.
    use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
    let mut database = sqlx::PgConnection::connect(&world.config().database.url).await.unwrap();
    let row = format!(
        "INSERT INTO orders VALUES ('{}', '{}', 'ada', 'unit', 1, 'martian', NULL, 9, 9, 1, 1, NULL, 'k', NULL, 'f', 1, 0, 0, 0)",
        ada.order_id(),
        sale.id
    );
    database.execute(AssertSqlSafe(row)).await.unwrap();
    drop(lease);
    let id = bob.order_id().parse().unwrap();
    until("bob's order is confirmed", Duration::from_secs(30), async || {
        running.parts.store.order(id).await.unwrap()
    })
    .await;
    let dead =
        until("the poisonous order is on the dead-letter queue", Duration::from_secs(60), async || {
            crate::seams::queue::take(&world, "dead").await
        })
        .await;
    assert!(dead.contains(ada.order_id()), "{dead}");
    let ticket = running.parts.gate.ticket(&sale.id, ada.order_id().parse().unwrap()).await.unwrap();
    assert!(ticket.expect("a parked order is in flight").parked);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_order_is_published_again() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("sweep.overtaken_after_ms=1000").set("sweep.every_ms=100").set("sweep.spacing_ms=500");
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    // Simulates a broker that confirms the order and then loses it.
    let verdict = running.parts.gate.admit(attempt(&sale.id, "ada", Some("k"), 1)).await.unwrap();
    let doorbuster::domain::Verdict::Accepted(lost) = verdict else { panic!("{verdict:?}") };
    running.parts.gate.mark_confirmed(&sale.id, &[lost.id]).await.unwrap();
    Buyer::of(&running, "bob").buy(sale.id.as_str(), "k").await;
    until("the lost order has its row", Duration::from_secs(30), async || {
        running.parts.store.order(lost.id).await.unwrap()
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_resumes_after_a_crash_and_never_sells_twice() {
    let world = World::new(Database::Sqlite).await;
    let parts = world.parts().await;
    let control = Control::new(parts.gate.clone(), parts.store.clone());
    let sale = sale(&world.name, 5, 1);
    control.create(&sale, &ActRequest::by("test")).await.unwrap();
    // A crash after the load: nothing is sold yet, and opening again resumes.
    parts.gate.load(&sale, &Versions::default()).await.unwrap();
    let verdict = parts.gate.admit(attempt(&sale.id, "ada", None, 1)).await.unwrap();
    assert!(matches!(verdict, doorbuster::domain::Verdict::NotOpen { .. }), "{verdict:?}");
    // A crash after the row was written: the same.
    parts.store.set_sale_state(&sale.id, SaleState::Open, Number { epoch: 1, seq: 0 }).await.unwrap();
    control.open(&sale.id, &ActRequest::by("test")).await.unwrap();
    let verdict = parts.gate.admit(attempt(&sale.id, "ada", None, 1)).await.unwrap();
    assert!(matches!(verdict, doorbuster::domain::Verdict::Accepted(_)), "{verdict:?}");
    control.open(&sale.id, &ActRequest::by("test")).await.unwrap();
    // Redis loses the sale. Opening it again would sell its units twice, so the command refuses.
    let client = redis::Client::open(crate::support::servers().redis.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for key in ["sale", "items", "stock", "users", "outbox", "age", "due"] {
        let () = redis::cmd("DEL")
            .arg(format!("{}:{{{}}}:{key}", world.name, sale.id))
            .query_async(&mut connection)
            .await
            .unwrap();
    }
    let error = control.open(&sale.id, &ActRequest::by("test")).await.expect_err("lost").to_string();
    assert!(error.contains("would sell units twice"), "{error}");
    assert!(sale.window.opens_at < Millis::now());
}

/// Between COMMIT and settlement an order has a row and an entry. A buyer who has read the one must not read the other.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_was_read_as_confirmed_is_not_read_as_accepted_before_it_is_settled() {
    let world = World::new(Database::Sqlite).await;
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&front.parts, &sale).await;
    let worker = Doorbuster::start_with(&world, "worker", Some("settle.before=hang")).await;
    let ada = Buyer::of(&front, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    let path = format!("/v1/sales/{}/orders", sale.id);
    until("the order has its row", Duration::from_secs(30), async || {
        let mine = ada.get(&format!("{path}/mine")).await;
        (mine.json["orders"][0]["status"] == "confirmed").then_some(())
    })
    .await;
    let read = ada.get(&format!("{path}/{}", order.order_id())).await;
    assert_eq!(read.json["status"], "confirmed", "{}", read.text);
    drop(worker);
    front.stop().await;
}
