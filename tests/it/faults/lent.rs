//! What the broker has lent a worker: it is counted in orders, it is not suspected because its worker died, and the sweep
//! leaves it alone.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;

use doorbuster::domain::{Entry, Order, OrderId, Sale};
use doorbuster::process::Parts;
use doorbuster::queue::{Consumer, Publisher};

use crate::faults::stalls::Session;
use crate::seams::queue::{connected, logged};
use crate::support::{Buyer, Database, Doorbuster, World, order, sale, until};

const LONG: Duration = Duration::from_secs(60);
const LINGER: Duration = Duration::from_millis(20);

/// Publishes the orders of so many users, in messages of `size`.
async fn publish(publisher: &Publisher, sale: &Sale, users: i64, size: usize) -> Vec<Order> {
    let orders: Vec<Order> = (1..=users).map(|seq| order(&sale.id, &format!("user{seq}"), seq)).collect();
    let messages = orders.chunks(size).map(|orders| publisher.publish(orders));
    let published: Vec<_> = futures_util::stream::iter(messages).buffered(100).collect().await;
    assert!(published.iter().all(Result::is_ok), "{published:?}");
    orders
}

/// Takes whatever the broker lends, in batches, and returns how many orders that are. Nothing is acknowledged.
async fn lent(consumer: &mut Consumer) -> Vec<doorbuster::queue::Delivery> {
    let mut taken = Vec::new();
    loop {
        let batch = consumer.next_batch_within(800, LINGER, Duration::from_secs(1)).await;
        if batch.is_empty() {
            return taken;
        }
        taken.extend(batch);
    }
}

fn orders_in(deliveries: &[doorbuster::queue::Delivery]) -> usize {
    deliveries.iter().map(|delivery| delivery.orders.as_ref().map_or(0, Vec::len)).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_lends_orders_and_not_messages() {
    let world = World::new(Database::Sqlite).await;
    let publisher = connected(&world).await;
    let sale = sale("lent", 99_999, 1);
    let mut consumer = Consumer::new(world.config().queue(), 2_000);
    publish(&publisher, &sale, 3_000, 1).await;
    let single = lent(&mut consumer).await;
    assert!((1_600..=2_000).contains(&single.len()), "{} messages of one order", single.len());
    for delivery in &single {
        assert!(delivery.ack().await);
    }
    drop(single);
    // Large ones behind the rest of the single ones: the first arrive before the worker knows their size.
    publish(&publisher, &sale, 30_000, 60).await;
    loop {
        let large = lent(&mut consumer).await;
        if large.is_empty() {
            break;
        }
        for delivery in large {
            assert!(delivery.ack().await, "what an ended consumer was given is still this worker's");
        }
    }
    publish(&publisher, &sale, 30_000, 60).await;
    let large = lent(&mut consumer).await;
    assert!((900..=4_000).contains(&orders_in(&large)), "{} orders lent", orders_in(&large));
    let mut left = orders_in(&large);
    for delivery in large {
        assert!(delivery.ack().await);
    }
    while left > 0 {
        let more = lent(&mut consumer).await;
        left = more.len();
        for delivery in more {
            assert_eq!(delivery.redeliveries, 0);
            assert!(delivery.ack().await);
        }
    }
    consumer.close().await;
    // Large ones from the beginning.
    publish(&publisher, &sale, 6_000, 60).await;
    let large = orders_in(&lent(&mut Consumer::new(world.config().queue(), 2_000)).await);
    assert!((900..=2_000).contains(&large), "{large} orders lent");
}

async fn all_sold(parts: &Parts, sale: &Sale, units: i64) {
    until("every order has its row", LONG, async || {
        let row = parts.store.sale(&sale.id).await.unwrap().expect("a row");
        (row.items[0].sold == units).then_some(())
    })
    .await;
}

/// Has somebody take everything, and die.
async fn die(world: &World) {
    let mut dies = Consumer::new(world.config().queue(), 9_999);
    assert!(!lent(&mut dies).await.is_empty());
    dies.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_dead_workers_merely_held_is_not_suspected() {
    let world = World::new(Database::Postgres).await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 2_000, 1);
    world.open_sale(&parts, &sale).await;
    let publisher = connected(&world).await;
    let orders = publish(&publisher, &sale, 1_000, 25).await;
    for _ in 0..3 {
        die(&world).await;
    }
    // The last message is one that a worker began to persist and did not finish.
    let begun = orders[975].id;
    parts.gate.begin_tries(&[begun]).await.unwrap();
    let worker = Doorbuster::start(&world, "worker").await;
    all_sold(&parts, &sale, 1_000).await;
    assert_eq!(worker.metric("doorbuster_worker_suspects_total").await, 1.0);
    // They were given back three times.
    assert!(worker.metric("doorbuster_worker_redeliveries_total").await >= 40.0);
    until("its try has ended", LONG, async || {
        (parts.gate.tries(&[begun]).await.unwrap() == [0]).then_some(())
    })
    .await;
}

/// The row of the sale is locked, so that each worker stays in its try until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_its_worker_died_of_is_suspected() {
    let mut world = World::new(Database::Postgres).await;
    world.set("worker.batch=25").set("worker.lanes=1");
    let parts = world.parts().await;
    let sale = sale(&world.name, 2_000, 1);
    world.open_sale(&parts, &sale).await;
    let publisher = connected(&world).await;
    let orders = publish(&publisher, &sale, 200, 25).await;
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    holder.execute(format!("UPDATE items SET sold = sold + 0 WHERE sale_id = '{}'", sale.id.as_str())).await;
    die(&world).await;
    let first_of_each: Vec<OrderId> = orders.chunks(25).map(|orders| orders[0].id).collect();
    for round in 1..=2_u32 {
        let mut worker = Doorbuster::start(&world, "worker").await;
        let tries = until("it tries", LONG, async || {
            let tries = parts.gate.tries(&first_of_each).await.unwrap();
            (tries.iter().sum::<u32>() == round).then_some(tries)
        })
        .await;
        worker.kill();
        assert!(tries.iter().filter(|tries| **tries > 0).count() <= 2, "only what was tried: {tries:?}");
    }
    holder.execute("ROLLBACK".into()).await;
    let _worker = Doorbuster::start(&world, "worker").await;
    all_sold(&parts, &sale, 200).await;
}

/// A sale is set aside for seconds; the queue is empty, and the worker has its orders.
#[tokio::test(flavor = "multi_thread")]
async fn the_sweep_publishes_nothing_that_a_worker_holds() {
    let mut world = World::new(Database::Postgres).await;
    world.set("sweep.every_ms=100").set("sweep.overtaken_after_ms=4000");
    let running = world.running().await;
    let (stalled, free) = (sale(&format!("{}a", world.name), 99, 1), sale(&world.name, 99, 1));
    for sale in [&stalled, &free] {
        world.open_sale(&running.parts, sale).await;
    }
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    let hold = format!("UPDATE items SET sold = sold + 0 WHERE sale_id = '{}'", stalled.id.as_str());
    holder.execute(hold).await;
    for nth in 0..20 {
        for sale in [&stalled, &free] {
            let bought = Buyer::of(&running, &format!("user{nth}")).buy(sale.id.as_str(), "k").await;
            assert_eq!(bought.status, 202, "{}", bought.text);
        }
    }
    all_sold(&running.parts, &free, 20).await;
    // Longer than until the sweep looks at an order for the second time.
    tokio::time::sleep(Duration::from_secs(10)).await;
    holder.execute("ROLLBACK".into()).await;
    all_sold(&running.parts, &stalled, 20).await;
    let mut published: BTreeMap<OrderId, u32> = BTreeMap::new();
    for entry in logged(&world).await {
        if let Entry::Accepted(order) = entry {
            *published.entry(order.id).or_default() += 1;
        }
    }
    assert_eq!(published.len(), 40);
    assert!(published.values().all(|times| *times == 1), "{published:?}");
    running.stop().await;
}
