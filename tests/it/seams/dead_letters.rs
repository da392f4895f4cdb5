//! Dead letters: how an order becomes one, and how each one ends.

use std::path::Path;
use std::time::Duration;

use doorbuster::audit::audit;
use doorbuster::front::Role;
use doorbuster::lease::LeaseOptions;
use doorbuster::process::Running;
use doorbuster::queue::{Consumer, DeadLetters};
use doorbuster::rehearsal::servers::{Ending, Kind, Server};
use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use crate::seams::queue::{channel, take};
use crate::support::{Answer, Buyer, Database, Doorbuster, World, run, sale, until};

const LONG: Duration = Duration::from_secs(40);

async fn execute(world: &World, statement: String) {
    let mut database = sqlx::PgConnection::connect(&world.config().database.url).await.unwrap();
    database.execute(AssertSqlSafe(statement)).await.unwrap();
}

/// Places an order that no worker can persist: its row already exists, with a status that this build does not know.
async fn poisoned(world: &World, running: &Running, sale: &doorbuster::domain::Sale, user: &str) -> Answer {
    let lease = running.parts.leases.take(sale.id.as_str(), [user], LeaseOptions::default()).await.unwrap();
    let answer = Buyer::of(running, user).buy(sale.id.as_str(), "k").await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    execute(
        world,
        format!(
            "INSERT INTO orders VALUES ('{}', '{}', '{user}', 'unit', 1, 'martian', NULL, 9, 9, 1, 1, NULL, 'k', NULL, 'f', 1, 0, 0, 0)",
            answer.order_id(),
            sale.id
        ),
    )
    .await;
    drop(lease);
    answer
}

async fn dead_letters(operator: &Buyer) -> Vec<serde_json::Value> {
    operator.get("/v1/admin/dead-letters").await.json["dead_letters"].as_array().cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poisonous_order_is_parked_with_its_reason_and_replayed_once_the_cause_is_gone() {
    let world = World::new(Database::Postgres).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let ada = poisoned(&world, &running, &sale, "ada").await;
    let operator = Buyer::operator(&running, Role::Operator);
    let listed =
        until("the order is a dead letter", LONG, async || dead_letters(&operator).await.pop()).await;
    assert_eq!((listed["id"].as_str(), listed["reason"].as_str()), (Some(ada.order_id()), Some("broken")));
    assert_eq!(listed["attempts"], 4, "{listed}");
    assert!(listed["first_error"].as_str().expect("a text").contains("martian"), "{listed}");
    assert_eq!(listed["orders"][0]["user_id"], "ada");
    let ticket = running.parts.gate.ticket(&sale.id, ada.order_id().parse().unwrap()).await.unwrap();
    assert!(ticket.expect("in flight").parked);

    let (code, out, err) = run(Some(&world), &["dead-letters", "list"]).await;
    assert_eq!(code, 0, "{err}");
    assert!(out.contains(ada.order_id()) && out.contains("broken"), "{out}");
    let (code, out, _) = run(Some(&world), &["dead-letters", "show", ada.order_id()]).await;
    assert!(code == 0 && out.contains("\"ada\"") && out.contains("attempts     4"), "{out}");
    // An order that cannot be written cannot be failed either: it is left, and the output says so.
    let (code, out, _) = run(Some(&world), &["dead-letters", "fail", ada.order_id()]).await;
    assert!(code == 3 && out.contains("0 done, 1 left"), "{out}");
    let (code, out, _) = run(Some(&world), &["dead-letters", "fail", "nobody"]).await;
    assert!(code == 3 && out.contains("there is no dead letter nobody"), "{out}");

    execute(&world, format!("DELETE FROM orders WHERE id = '{}'", ada.order_id())).await;
    let (code, out, err) = run(Some(&world), &["dead-letters", "replay", "--all"]).await;
    assert!(code == 0 && out.contains("1 done, 0 left"), "{out}{err}");
    let buyer = Buyer::of(&running, "ada");
    until("the order is confirmed", LONG, async || {
        Some(buyer.get(&ada.headers["location"]).await).filter(|answer| answer.json["status"] == "confirmed")
    })
    .await;
    assert!(dead_letters(&operator).await.is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_kills_its_workers_becomes_a_dead_letter_that_an_operator_fails() {
    let mut world = World::new(Database::Postgres).await;
    world.set("queue.delivery_limit=2").set("sweep.every_ms=100").set("sweep.overtaken_after_ms=1000");
    let running = world.running_as(doorbuster::process::Role::Front).await;
    let sale = sale(&world.name, 2, 1);
    world.open_sale(&running.parts, &sale).await;
    let ada = Buyer::of(&running, "ada");
    let accepted = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(accepted.json["durability"], "broker", "{}", accepted.text);
    // Workers that die before they acknowledge it.
    for _ in 0..3 {
        let mut dies = Consumer::new(world.config().queue(), 10);
        assert_eq!(dies.next_batch(1, Duration::from_millis(5)).await.len(), 1);
        dies.close().await;
    }
    let operator = Buyer::operator(&running, Role::Operator);
    let dead_letter =
        until("the broker makes it a dead letter", LONG, async || dead_letters(&operator).await.pop()).await;
    assert_eq!(dead_letter["reason"], "delivery_limit", "{dead_letter}");
    // The leader of the sweep marks it, and the sweep then leaves it alone.
    until("its outbox entry is parked", LONG, async || {
        let id = accepted.order_id().parse().unwrap();
        running.parts.gate.ticket(&sale.id, id).await.unwrap().filter(|ticket| ticket.parked)
    })
    .await;
    assert_eq!(
        ada.get(&accepted.headers["location"]).await.json["status"],
        "accepted",
        "a parked order is in flight"
    );

    let body = format!(r#"{{"id":"{}"}}"#, accepted.order_id());
    let viewer = Buyer::operator(&running, Role::Viewer);
    assert_eq!(viewer.post("/v1/admin/dead-letters:fail", &[], &body).await.status, 403);
    let failed = operator.post("/v1/admin/dead-letters:fail", &[], &body).await;
    assert_eq!((failed.status, failed.json["end"].as_str()), (200, Some("failed")), "{}", failed.text);
    let read = ada.get(&accepted.headers["location"]).await;
    assert_eq!(
        (read.json["status"].as_str(), read.json["failure"].as_str()),
        (Some("failed"), Some("given_up"))
    );
    let books = audit(&running.parts.gate, &running.parts.store, &sale.id).await.unwrap();
    assert!(books.balances() && books.is_at_rest(), "{books:?}");
    assert_eq!(books.items[0].left, 2, "its unit is on sale again");
    assert_eq!(ada.buy(sale.id.as_str(), "other").await.status, 202, "its buyer may buy again");
    let acts = operator.get("/v1/admin/acts").await;
    let last = &acts.json["acts"][0];
    assert_eq!(
        (last["kind"].as_str(), last["by"].as_str()),
        (Some("dead-letter fail"), Some("operator op")),
        "{last}"
    );
    assert_eq!(
        (last["subject"].as_str(), last["result"].as_str()),
        (Some(accepted.order_id()), Some("failed")),
        "{last}"
    );
    let again = operator.post("/v1/admin/dead-letters:fail", &[], &body).await;
    assert_eq!((again.status, again.code()), (404, "letter_not_found"), "{}", again.text);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_message_is_parked_with_the_reason() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let name = format!("{}.orders", world.name);
    crate::seams::queue::channel(&world)
        .await
        .basic_publish(
            name.as_str().into(),
            name.as_str().into(),
            lapin::options::BasicPublishOptions::default(),
            br#"{"v":99}"#,
            lapin::BasicProperties::default(),
        )
        .await
        .unwrap();
    let operator = Buyer::operator(&running, Role::Operator);
    let dead_letter =
        until("the order is a dead letter", LONG, async || dead_letters(&operator).await.pop()).await;
    assert_eq!(dead_letter["reason"], "unreadable", "{dead_letter}");
    assert!(dead_letter["unreadable"].as_str().expect("a text").contains("version 99"), "{dead_letter}");
    let id = dead_letter["id"].as_str().expect("an id");
    let shown = operator.get(&format!("/v1/admin/dead-letters/{id}")).await;
    assert_eq!(shown.json["payload"], r#"{"v":99}"#, "{}", shown.text);
    let (code, out, _) = run(Some(&world), &["dead-letters", "replay", id]).await;
    assert!(code == 3 && out.contains("this build cannot read"), "{out}");
    let (code, out, _) = run(Some(&world), &["dead-letters", "fail", id]).await;
    assert!(code == 0 && out.contains("removed"), "{out}");
    let (_, out, _) = run(Some(&world), &["dead-letters", "list"]).await;
    assert_eq!(out.trim(), "no dead letters");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_that_another_reader_holds_for_a_moment_are_not_missed() {
    let world = World::new(Database::Sqlite).await;
    let sweep = DeadLetters::open(world.config().queue());
    sweep.wait_until_up().await;
    let (channel, queue) = (channel(&world).await, format!("{}.dead", world.name));
    for _ in 0..3 {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        channel.basic_publish("".into(), queue.as_str().into(), options, b"x", properties).await.unwrap();
    }
    let held = until("all are there", LONG, async || {
        let held = sweep.hold(100).await.unwrap();
        (held.letters.len() == 3).then_some(held)
    })
    .await;
    let operator = DeadLetters::open(world.config().queue());
    let (listed, ()) = tokio::join!(operator.list(100), async {
        // By then the other has connected and found nothing; half a second later it looks again.
        tokio::time::sleep(Duration::from_millis(150)).await;
        held.put_back().await;
    });
    assert_eq!(listed.unwrap().len(), 3);
    // What a reader holds that was there before is listed too, and nothing twice.
    let (listed, held) = tokio::join!(operator.list(100), async {
        tokio::time::sleep(Duration::from_millis(250)).await;
        sweep.hold(100).await.unwrap()
    });
    assert_eq!(listed.unwrap().len(), 3);
    held.put_back().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_whose_dead_letters_were_lost_are_published_again() {
    let mut world = World::new(Database::Postgres).await;
    world.set("sweep.parked_after_ms=1000").set("sweep.every_ms=100").set("sweep.spacing_ms=500");
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    let ada = poisoned(&world, &running, &sale, "ada").await;
    let operator = Buyer::operator(&running, Role::Operator);
    until("the order is a dead letter", LONG, async || dead_letters(&operator).await.pop()).await;
    execute(&world, format!("DELETE FROM orders WHERE id = '{}'", ada.order_id())).await;
    let dead = format!("{}.dead", world.name);
    crate::seams::queue::channel(&world)
        .await
        .queue_purge(dead.as_str().into(), lapin::options::QueuePurgeOptions::default())
        .await
        .unwrap();
    let id = ada.order_id().parse().unwrap();
    until("the order is confirmed without its dead letter", LONG, async || {
        running.parts.store.order(id).await.ok().flatten()
    })
    .await;
    running.stop().await;
}

/// A private broker for this world, whose dead-letter queue can be shut.
async fn private_broker(world: &mut World, folder: &Path) -> Server {
    let broker = Server::start(Kind::Rabbitmq, folder).await.unwrap();
    world.set(&format!("queue.url={}", broker.url));
    world.parts().await.gate.check_installation().await.unwrap();
    broker
}

/// Bounds the dead-letter queue. The broker takes one more than that.
async fn bound_dead_letters(world: &World, broker: &Server, most: u32) {
    let pattern = format!("^{}\\.dead$", world.name);
    let bound = format!(r#"{{"max-length":{most},"overflow":"reject-publish"}}"#);
    broker.control(&["set_policy", "dead", &pattern, &bound, "--apply-to", "queues"]).await.unwrap();
}

/// Makes the broker refuse dead letters.
async fn shut_dead_letters(world: &World, broker: &Server) {
    publish(world, "dead").await;
    bound_dead_letters(world, broker, 0).await;
}

/// A queue that refuses messages takes more only when it has become shorter, so this takes the first one away.
async fn open_dead_letters(world: &World, broker: &Server) {
    bound_dead_letters(world, broker, 100).await;
    take(world, "dead").await.expect("the first");
}

/// Publishes a message that nobody can read.
async fn publish(world: &World, queue: &str) {
    let name = format!("{}.{queue}", world.name);
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    let channel = channel(world).await;
    channel.basic_publish("".into(), name.as_str().into(), options, b"x", properties).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_parked_waits_apart_from_the_others() {
    let mut world = World::new(Database::Postgres).await;
    world.set("worker.lanes=1");
    let folder = tempfile::tempdir().unwrap();
    let broker = private_broker(&mut world, folder.path()).await;
    let running = world.running().await;
    let sale = sale(&world.name, 50, 1);
    world.open_sale(&running.parts, &sale).await;
    running.publisher_is_up(LONG).await.expect("the broker");
    shut_dead_letters(&world, &broker).await;
    let ada = poisoned(&world, &running, &sale, "ada").await;
    let id = ada.order_id().parse().unwrap();
    until("it was tried to park the order", LONG, async || {
        running.parts.gate.ticket(&sale.id, id).await.unwrap().filter(|ticket| ticket.parked)
    })
    .await;
    let others = (0..40).map(|nth| {
        let buyer = Buyer::of(&running, &format!("other-{nth}"));
        let sale = sale.id.to_string();
        async move { buyer.buy(&sale, "k").await.order_id().to_owned() }
    });
    let ids = futures_util::future::join_all(others).await;
    for id in &ids {
        let id = id.parse().unwrap();
        until("the other is confirmed", LONG, async || running.parts.store.order(id).await.unwrap()).await;
    }
    // Each transaction writes its number beside its rows. One by one, there would be forty.
    let mut database = sqlx::PgConnection::connect(&world.config().database.url).await.unwrap();
    let count = format!("SELECT count(DISTINCT xmin::text) FROM orders WHERE id IN ('{}')", ids.join("','"));
    let transactions: i64 = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&mut database).await.unwrap();
    assert!(transactions <= 20, "{transactions} transactions for forty orders");

    let operator = Buyer::operator(&running, Role::Operator);
    assert_eq!(dead_letters(&operator).await.len(), 1);
    open_dead_letters(&world, &broker).await;
    until("the order is a dead letter", LONG, async || {
        let letters = dead_letters(&operator).await;
        letters.into_iter().find(|letter| letter["id"] == ada.order_id() && letter["reason"] == "broken")
    })
    .await;
    running.stop().await;
    broker.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_message_is_parked_once_the_broker_takes_dead_letters_again() {
    let mut world = World::new(Database::Postgres).await;
    let folder = tempfile::tempdir().unwrap();
    let broker = private_broker(&mut world, folder.path()).await;
    let running = world.running_as(doorbuster::process::Role::Front).await;
    let worker = Doorbuster::start(&world, "worker").await;
    running.publisher_is_up(LONG).await.expect("the broker");
    shut_dead_letters(&world, &broker).await;
    publish(&world, "orders").await;
    until("a try came to nothing", LONG, async || {
        worker.has_logged("a dead letter could not be written").then_some(())
    })
    .await;
    let operator = Buyer::operator(&running, Role::Operator);
    assert_eq!(dead_letters(&operator).await.len(), 1);
    open_dead_letters(&world, &broker).await;
    until("the message is a dead letter", LONG, async || dead_letters(&operator).await.pop()).await;
    running.stop().await;
    broker.stop(Ending::AtOnce).await;
}
