//! The queue against a real RabbitMQ.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use doorbuster::domain::{Entry, SaleId};
use doorbuster::queue::{
    Consumer, Consuming, DeadLetters, LogFrom, OrderLog, PublishError, Publisher, Reason, Rejection,
};
use doorbuster::rehearsal::chaos::Weather;
use futures_util::StreamExt as _;
use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};

use crate::support::{Database, World, behind_proxy, id, order, until};

const LINGER: Duration = Duration::from_millis(20);

pub async fn connected(world: &World) -> Publisher {
    let publisher = Publisher::open(world.config().queue());
    tokio::time::timeout(Duration::from_secs(60), publisher.wait_until_up()).await.expect("the broker");
    publisher
}

pub async fn channel(world: &World) -> lapin::Channel {
    let connection =
        Connection::connect(&world.config().queue.url, ConnectionProperties::default()).await.unwrap();
    connection.create_channel().await.unwrap()
}

/// Takes one message from a queue, if there is one.
pub async fn take(world: &World, queue: &str) -> Option<String> {
    let name = format!("{}.{queue}", world.name);
    let options = BasicGetOptions { no_ack: true };
    let got = channel(world).await.basic_get(name.as_str().into(), options).await.unwrap();
    got.map(|message| String::from_utf8_lossy(&message.data).into_owned())
}

/// Waits for the next message of a queue, and takes it.
async fn next_of(world: &World, queue: &str) -> lapin::message::BasicGetMessage {
    let channel = channel(world).await;
    let name = format!("{}.{queue}", world.name);
    until("a message arrives", Duration::from_secs(20), async || {
        channel.basic_get(name.as_str().into(), BasicGetOptions { no_ack: true }).await.unwrap()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn confirmed_messages_arrive_and_unacknowledged_ones_are_redelivered() {
    let world = World::new(Database::Sqlite).await;
    let publisher = connected(&world).await;
    let sale: SaleId = id("s");
    let orders: Vec<_> = (0..50).map(|seq| order(&sale, &format!("user{seq}"), seq)).collect();
    let publishing = orders.iter().map(|order| publisher.publish(std::slice::from_ref(order)));
    assert_eq!(futures_util::future::join_all(publishing).await, vec![Ok(()); 50]);

    let mut dies = Consumer::new(world.config().queue(), 100);
    let batch = dies.next_batch(50, Duration::from_secs(2)).await;
    assert_eq!(batch.len(), 50);
    batch[0].ack().await;
    dies.close().await;

    let mut lives = Consumer::new(world.config().queue(), 100);
    let mut again = Vec::new();
    while again.len() < 49 {
        again.extend(lives.next_batch(50, LINGER).await);
    }
    assert!(again.iter().all(|delivery| delivery.redeliveries == 1));
    let mut seen: Vec<_> =
        again.iter().flat_map(|delivery| delivery.orders.clone().expect("readable")).collect();
    seen.sort_by_key(|order| order.number);
    assert_eq!(seen, orders[1..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_wait_loses_no_delivery() {
    let world = World::new(Database::Sqlite).await;
    let publisher = connected(&world).await;
    let sale: SaleId = id("s");
    let mut consumer = Consumer::new(world.config().queue(), 100);
    publisher.publish(&[order(&sale, "ada", 1)]).await.unwrap();
    assert_eq!(consumer.next_batch(1, LINGER).await.len(), 1);
    for seq in 2..12 {
        publisher.publish(&[order(&sale, "ada", seq)]).await.unwrap();
    }
    // The consumer lingers for more messages than there are, and the wait is cancelled meanwhile.
    let cancelled =
        tokio::time::timeout(Duration::from_secs(2), consumer.next_batch(50, Duration::from_secs(60))).await;
    assert!(cancelled.is_err());
    assert_eq!(
        consumer.next_batch(50, LINGER).await.len(),
        10,
        "the deliveries taken by then are still there"
    );
}

/// The number of consumers that the broker lends orders to.
async fn consumers(world: &World) -> u32 {
    let name = format!("{}.orders", world.name);
    let options = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
    let queue =
        channel(world).await.queue_declare(name.as_str().into(), options, FieldTable::default()).await;
    queue.unwrap().consumer_count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_more_that_is_cancelled_again_and_again_ends_in_time() {
    let world = World::new(Database::Sqlite).await;
    let publisher = connected(&world).await;
    let mut consumer = Consumer::new(world.config().queue(), 100);
    publisher.publish(&[order(&id("s"), "ada", 1)]).await.unwrap();
    until("the batch is there", Duration::from_secs(30), async || {
        let wait = consumer.next_batch(50, Duration::from_secs(1));
        tokio::time::timeout(Duration::from_millis(200), wait).await.ok().filter(|batch| batch.len() == 1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_wait_neither_keeps_a_consumer_from_connecting_nor_leaves_a_second_one() {
    let world = World::new(Database::Sqlite).await;
    let publisher = connected(&world).await;
    let mut consumer = Consumer::new(world.config().queue(), 100);
    let is_up = consumer.watch();
    // Far less than connecting takes.
    until("the consumer connects", Duration::from_secs(30), async || {
        let batch = tokio::time::timeout(Duration::from_millis(5), consumer.next_batch(1, LINGER)).await;
        assert!(batch.is_err(), "nothing was published");
        (*is_up.borrow() == Consuming::Connected).then_some(())
    })
    .await;
    assert_eq!(consumers(&world).await, 1);
    for seq in 1..11 {
        publisher.publish(&[order(&id("s"), "ada", seq)]).await.unwrap();
    }
    let mut taken = 0;
    while taken < 10 {
        let batch = consumer.next_batch(10, LINGER);
        taken += tokio::time::timeout(Duration::from_secs(20), batch).await.expect("all are lent").len();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_dropped_while_it_connects_leaves_none_with_the_broker() {
    let mut world = World::new(Database::Sqlite).await;
    let _publisher = connected(&world).await;
    let direct = world.config().queue.url;
    let proxy = behind_proxy(&mut world, "queue.url").await;
    // Each step of connecting takes longer than the time between two of those that are dropped, and all of them
    // together less than the longest wait.
    proxy.set(Weather::Slow(Duration::from_millis(20)));
    let dropped = (0..200).map(|nth| {
        let mut consumer = Consumer::new(world.config().queue(), 100);
        async move {
            let wait = Duration::from_millis(nth * 12);
            let batch = tokio::time::timeout(wait, consumer.next_batch(1, LINGER)).await;
            assert!(batch.is_err(), "nothing was published");
        }
    });
    futures_util::future::join_all(dropped).await;
    proxy.set(Weather::Fair);
    world.set(&format!("queue.url={direct}"));
    let mut quiet = 0;
    until("the broker lends to nobody, and stays so", Duration::from_secs(30), async || {
        quiet = if consumers(&world).await == 0 { quiet + 1 } else { 0 };
        (quiet == 50).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_this_build_cannot_read_carries_the_reason() {
    let world = World::new(Database::Sqlite).await;
    let _publisher = connected(&world).await;
    let name = format!("{}.orders", world.name);
    let channel = channel(&world).await;
    channel
        .basic_publish(
            name.as_str().into(),
            name.as_str().into(),
            BasicPublishOptions::default(),
            br#"{"v":99}"#,
            BasicProperties::default(),
        )
        .await
        .unwrap();
    let mut consumer = Consumer::new(world.config().queue(), 10);
    let batch = consumer.next_batch(1, LINGER).await;
    let error = batch[0].orders.as_ref().expect_err("unreadable").to_string();
    assert!(error.contains("version 99"), "{error}");
}

/// All entries of the order log, from its head.
pub async fn logged(world: &World) -> Vec<Entry> {
    let log = OrderLog::open(world.config().queue());
    let mut reader = log.read(LogFrom::Head).await.unwrap();
    let mut entries = Vec::new();
    while let Some(message) = reader.next().await.unwrap() {
        entries.extend(message.entries.into_iter().map(Result::unwrap));
    }
    reader.close().await;
    entries
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unrouted_message_is_kept_and_a_deleted_queue_is_declared_again() {
    let world = World::new(Database::Sqlite).await;
    let publisher = connected(&world).await;
    let name = format!("{}.orders", world.name);
    let channel = channel(&world).await;
    channel.queue_delete(name.as_str().into(), Default::default()).await.unwrap();
    // The order log holds it, so the broker's confirm is true. The sweep publishes it again from the outbox.
    publisher.publish(&[order(&id("s"), "carl", 1)]).await.unwrap();
    let logged = logged(&world).await;
    assert!(matches!(&logged[..], [Entry::Accepted(order)] if order.user.as_str() == "carl"), "{logged:?}");

    // Reading the log declared the queue again.
    for name in ["orders", "log"].map(|queue| format!("{}.{queue}", world.name)) {
        channel.queue_delete(name.as_str().into(), Default::default()).await.unwrap();
    }
    let result = publisher.publish(&[order(&id("s"), "ada", 1)]).await;
    assert!(matches!(result, Ok(()) | Err(PublishError::Refused(_))), "{result:?}");
    let kept = next_of(&world, "unrouted").await;
    assert!(String::from_utf8_lossy(&kept.data).contains("\"ada\""));

    let mut consumer = Consumer::new(world.config().queue(), 10);
    let next = tokio::spawn(async move { consumer.next_batch(1, LINGER).await.len() });
    until("the consumer declared the queue again", Duration::from_secs(20), async || {
        publisher.publish(&[order(&id("s"), "bob", 2)]).await.ok();
        next.is_finished().then_some(())
    })
    .await;
    assert_eq!(next.await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_gets_nothing_while_messages_wait_reconnects() {
    let world = World::new(Database::Sqlite).await;
    let publisher = connected(&world).await;
    for seq in 1..3 {
        publisher.publish(&[order(&id("s"), "ada", seq)]).await.unwrap();
    }
    // The broker lends one delivery at a time, and that one is never acknowledged. The consumer hears nothing more.
    let mut consumer = Consumer::new(world.config().queue(), 1);
    assert_eq!(consumer.next_batch(1, LINGER).await.len(), 1);
    let next = tokio::time::timeout(Duration::from_secs(40), consumer.next_batch(1, LINGER)).await;
    assert_eq!(next.expect("the consumer reconnects").len(), 1);
}

/// As a worker does while a sale is set aside.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_gets_nothing_reconnects_however_often_its_caller_stops_waiting() {
    let world = World::new(Database::Sqlite).await;
    let publisher = connected(&world).await;
    for seq in 1..3 {
        publisher.publish(&[order(&id("s"), "ada", seq)]).await.unwrap();
    }
    let mut consumer = Consumer::new(world.config().queue(), 1);
    assert_eq!(consumer.next_batch(1, LINGER).await.len(), 1);
    until("the consumer reconnects", Duration::from_secs(40), async || {
        let next = tokio::time::timeout(Duration::from_millis(100), consumer.next_batch(1, LINGER)).await;
        (next.ok()?.len() == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_confirm_belongs_to_its_own_message() {
    let world = World::new(Database::Sqlite).await;
    let publisher = connected(&world).await;
    let channel = channel(&world).await;
    // A second queue gets every order too. When it is full, the broker refuses the publish. So the confirmed messages
    // must be exactly those that it took.
    let (orders, bounded) = (format!("{}.orders", world.name), format!("{}.bounded", world.name));
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(2));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(bounded.as_str().into(), durable, arguments).await.unwrap();
    let nothing = FieldTable::default;
    channel
        .queue_bind(
            bounded.as_str().into(),
            orders.as_str().into(),
            orders.as_str().into(),
            Default::default(),
            nothing(),
        )
        .await
        .unwrap();
    // Many tasks empty it while orders arrive. Accepted and refused messages then alternate, so a confirm for the wrong
    // message shows up as a difference.
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut emptying = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (channel, bounded, over) =
            (crate::seams::queue::channel(&world).await, bounded.clone(), over.clone());
        emptying.spawn(async move {
            let mut taken = Vec::new();
            loop {
                let last = over.load(std::sync::atomic::Ordering::SeqCst);
                let got = channel.basic_get(bounded.as_str().into(), BasicGetOptions { no_ack: true }).await;
                match got.unwrap() {
                    Some(message) => {
                        taken.push(message.properties.message_id().clone().expect("an id").to_string());
                    }
                    None if last => return taken,
                    None => {}
                }
            }
        });
    }
    let orders: Vec<_> = (0..12_000).map(|nth| order(&id("s"), "ada", nth)).collect();
    let answers: Vec<_> = futures_util::stream::iter(&orders)
        .map(|order| async { (order.id, publisher.publish(std::slice::from_ref(order)).await) })
        .buffer_unordered(400)
        .collect()
        .await;
    over.store(true, std::sync::atomic::Ordering::SeqCst);
    let taken: BTreeSet<String> = emptying.join_all().await.into_iter().flatten().collect();
    let mut confirmed = BTreeSet::new();
    let mut refused = 0;
    for (id, answer) in answers {
        match answer {
            Ok(()) => _ = confirmed.insert(id.to_string()),
            Err(PublishError::Refused(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    println!("{} confirmed, {refused} refused", confirmed.len());
    let wrong = taken.symmetric_difference(&confirmed).count();
    assert_eq!(
        wrong,
        0,
        "confirms that belong to another message, of {} confirmed and {refused} refused",
        confirmed.len()
    );
    assert!(refused > 100 && confirmed.len() > 100, "{refused} refused, {} confirmed", confirmed.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unrouted_dead_letter_does_not_count_as_written() {
    let world = World::new(Database::Sqlite).await;
    let publisher = connected(&world).await;
    let dead_letters = DeadLetters::open(world.config().queue());
    dead_letters.wait_until_up().await;
    publisher.publish(&[order(&id("s"), "ada", 1)]).await.unwrap();
    let mut consumer = Consumer::new(world.config().queue(), 10);
    let batch = consumer.next_batch(1, LINGER).await;
    let rejection =
        Rejection { reason: Reason::Broken, attempts: 1, first_error: "x".into(), last_error: "x".into() };
    let (channel, dead) = (channel(&world).await, format!("{}.dead", world.name));
    let mut written = 0;
    for round in 0..10 {
        if round % 2 == 0 {
            channel.queue_delete(dead.as_str().into(), Default::default()).await.unwrap();
            written = 0;
        }
        let deleted = dead_letters.write(&batch[0], None, &rejection).await;
        if deleted.is_ok() {
            written += 1;
        }
        // Whichever client is connected declares the queue again within seconds.
        until("the dead letter is written", Duration::from_secs(30), async || {
            dead_letters.write(&batch[0], None, &rejection).await.ok()
        })
        .await;
        written += 1;
    }
    assert_eq!(dead_letters.list(100).await.unwrap().len(), written);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_broker_is_reported_at_once() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("queue.url=amqp://127.0.0.1:1");
    let publisher = Publisher::open(world.config().queue());
    let result =
        tokio::time::timeout(Duration::from_secs(1), publisher.publish(&[order(&id("s"), "ada", 1)])).await;
    assert_eq!(result.expect("at once"), Err(PublishError::Away));
    assert!(!publisher.is_up());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_other_settings_is_refused_and_named() {
    let mut world = World::new(Database::Sqlite).await;
    world.parts().await;
    let _publisher = connected(&world).await;
    world.set("queue.delivery_limit=7");
    let other = Publisher::open(world.config().queue());
    let up = tokio::time::timeout(Duration::from_secs(2), other.wait_until_up()).await;
    assert!(up.is_err(), "a queue with other arguments must not be used");
    let (code, _, err) = crate::support::run(Some(&world), &["dead-letters", "list"]).await;
    assert_eq!(code, 1, "{err}");
    let queue = format!("{}.orders", world.name);
    assert!(err.contains(&queue) && err.contains("declared with other settings"), "{err}");
}
