//! Two servers lose data in the middle of a sale, at once or one after the other, under the same crowd as in
//! [`super::mid_sale`].

use std::collections::BTreeSet;

use doorbuster::domain::OrderId;
use doorbuster::rehearsal::servers::{Ending, Kind, Server};
use tokio::time::Instant;

use super::mid_sale::{LONG, MidSale, SOME, on_databases, start_again, start_empty};
use super::pages::private_redis_behind;
use crate::support::{Backup, Database, World, behind_proxy, redis_second, roll_redis_back, until};

async fn redis_is_emptied_and_the_database_restored(database: Database) {
    let mut world = World::new(database).await;
    let folder = tempfile::tempdir().unwrap();
    let (redis, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let stage = MidSale::begin(world).await;
    let backup = Backup::of(&stage.world);
    backup.make().await;
    stage.crowd.goes_on(SOME).await;
    stage.restore(&backup).await;
    let fault = Instant::now();
    redis.stop(Ending::AtOnce).await;
    let redis = start_empty(Kind::Redis, folder.path(), &proxy).await;
    stage.is_behind().await;
    let rebuild = ["rebuild", "--sale", stage.sale.id.as_str(), "--yes"];
    let (code, said) = stage.command(&rebuild).await;
    assert!(code == 1 && said.contains("replay run log"), "{code} {said}");
    stage.replay_the_log().await;
    let (code, said) = stage.command(&rebuild).await;
    assert_eq!(code, 0, "{said}");
    stage.ends_well(&format!("redis was emptied and the database restored ({database:?})"), fault).await;
    redis.stop(Ending::AtOnce).await;
}

async fn redis_goes_back_in_time_after_the_database(database: Database) {
    let mut world = World::new(database).await;
    let folder = tempfile::tempdir().unwrap();
    let (redis, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let stage = MidSale::begin(world).await;
    let backup = Backup::of(&stage.world);
    backup.make().await;
    stage.crowd.goes_on(SOME).await;
    let fault = Instant::now();
    stage.restore(&backup).await;
    stage.is_behind().await;
    let second = redis_second(&stage.running.parts.gate).await;
    // Accepted while the database is behind, and then forgotten by Redis.
    stage.crowd.buys(SOME).await;
    let before = stage.number().await;
    let later_fault = Instant::now();
    redis.stop(Ending::AtOnce).await;
    roll_redis_back(folder.path(), second);
    let redis = start_again(Kind::Redis, folder.path(), &proxy).await;
    stage.replay_the_log().await;
    println!("the second loss came {:.1} s after the first", (later_fault - fault).as_secs_f64());
    stage.is_rebuilt(before).await;
    stage
        .ends_well(
            &format!("the database was restored, and redis went back in time later ({database:?})"),
            later_fault,
        )
        .await;
    redis.stop(Ending::AtOnce).await;
}

/// The orders that no server has: accepted, without a row, and forgotten by Redis. Redis must be back and nothing
/// rebuilt yet.
async fn held_by_nobody(stage: &MidSale) -> BTreeSet<OrderId> {
    let (gate, sale) = (&stage.running.parts.gate, &stage.sale.id);
    let in_flight = until("the outbox can be read", LONG, async || gate.in_flight(sale).await.ok()).await;
    let in_flight: BTreeSet<OrderId> = in_flight.into_iter().map(|ticket| ticket.order.id).collect();
    let rows = stage.running.parts.store.orders_after(sale, None, 100_000).await.unwrap();
    let rows: BTreeSet<OrderId> = rows.into_iter().map(|row| row.order.id).collect();
    let is_held = |order: &OrderId| in_flight.contains(order) || rows.contains(order);
    stage.crowd.accepted().into_iter().filter(|order| !is_held(order)).collect()
}

/// The one pair that costs orders: those that had no row yet, because no worker ran for a moment, and that Redis forgot.
/// The broker alone still had them. Nothing else is lost, and the rebuild says that something may be.
async fn the_broker_is_wiped_and_redis_goes_back_in_time(database: Database) {
    let mut world = World::new(database).await;
    // A person decides about the loss.
    world.set("gate.rebuild=manual");
    let folder = tempfile::tempdir().unwrap();
    let (redis, redis_proxy) = private_redis_behind(&mut world, folder.path()).await;
    let broker = Server::start(Kind::Rabbitmq, folder.path()).await.unwrap();
    world.set(&format!("queue.url={}", broker.url));
    let broker_proxy = behind_proxy(&mut world, "queue.url").await;
    let mut stage = MidSale::begin_with_worker(world).await;
    // Clocks may differ by a minute: a younger sale would not be known to be older than a log that began again.
    let older = "UPDATE sales SET created_at_ms = created_at_ms - 3600000";
    Backup::of(&stage.world).execute_in_place(older).await;
    stage.stop_worker().await;
    stage.crowd.buys(SOME).await;
    let second = redis_second(&stage.running.parts.gate).await;
    // Until it is known what is lost, none gets a row by being cancelled, and later no order comes.
    let cancelling = stage.crowd.pause_cancelling().await;
    stage.crowd.buys(SOME).await;
    let buying = stage.crowd.pause_buying().await;
    let fault = Instant::now();
    redis.stop(Ending::AtOnce).await;
    broker.stop(Ending::AtOnce).await;
    roll_redis_back(folder.path(), second);
    let redis = start_again(Kind::Redis, folder.path(), &redis_proxy).await;
    let lost = held_by_nobody(&stage).await;
    assert!(lost.len() >= SOME, "{} orders", lost.len());
    let broker = start_empty(Kind::Rabbitmq, folder.path(), &broker_proxy).await;
    stage.running.publisher_is_up(LONG).await.unwrap();
    drop((buying, cancelling));
    // Until a person has accepted the loss, no buyer hears that there is no such order.
    stage.crowd.keeps_the_rules();
    stage.crowd.give_up(&lost);
    let (code, said) = stage.command(&["rebuild", "--sale", stage.sale.id.as_str(), "--yes"]).await;
    assert!(code == 3 && said.contains("the order log begins at"), "{code} {said}");
    println!("{} of {} accepted orders are lost", lost.len(), stage.crowd.accepted().len());
    stage.start_worker().await;
    stage.ends_well(&format!("the broker was wiped and redis went back in time ({database:?})"), fault).await;
    redis.stop(Ending::AtOnce).await;
    broker.stop(Ending::AtOnce).await;
}

on_databases! {
    async fn redis_is_emptied_and_the_database_restored_in_mid_sale() = redis_is_emptied_and_the_database_restored(Postgres);
    async fn the_database_is_restored_and_redis_goes_back_in_time_later_in_mid_sale() =
        redis_goes_back_in_time_after_the_database(Postgres);
    async fn the_broker_is_wiped_and_redis_goes_back_in_time_in_mid_sale() =
        the_broker_is_wiped_and_redis_goes_back_in_time(Sqlite);
    #[ignore = "make test-mid-sale"]
    async fn redis_is_emptied_and_the_database_restored_on_mariadb() = redis_is_emptied_and_the_database_restored(Mariadb);
    async fn redis_is_emptied_and_the_database_restored_on_sqlite() = redis_is_emptied_and_the_database_restored(Sqlite);
    async fn redis_goes_back_in_time_after_the_database_on_mariadb() = redis_goes_back_in_time_after_the_database(Mariadb);
    async fn redis_goes_back_in_time_after_the_database_on_sqlite() = redis_goes_back_in_time_after_the_database(Sqlite);
    async fn the_broker_is_wiped_and_redis_goes_back_in_time_on_postgres() =
        the_broker_is_wiped_and_redis_goes_back_in_time(Postgres);
    async fn the_broker_is_wiped_and_redis_goes_back_in_time_on_mariadb() =
        the_broker_is_wiped_and_redis_goes_back_in_time(Mariadb);
}
