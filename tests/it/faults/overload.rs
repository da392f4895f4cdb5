//! More work than the database can do. What it can do must be done: if every caller waited for a connection until their
//! time was up, those who get one could not use it any more, and nothing would be done however long it lasted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use doorbuster::rehearsal::chaos::Weather;
use tokio::task::JoinSet;

use crate::support::{Database, World, behind_proxy, sale};

/// How many ask again and again.
const CALLERS: usize = 1_000;
const FOR: Duration = Duration::from_secs(8);

async fn an_overloaded_database_still_does_what_it_can(database: Database) {
    let mut world = World::new(database).await;
    world.set("database.timeout_ms=2000").set("database.connections=2");
    let proxy = behind_proxy(&mut world, "database.url").await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&parts, &sale).await;
    // Two connections then read two hundred times a second at most, so a thousand callers wait for five seconds.
    proxy.set(Weather::Slow(Duration::from_millis(5)));
    let (answered, until) = (Arc::new(AtomicUsize::new(0)), Instant::now() + FOR);
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (store, id, answered) = (parts.store.clone(), sale.id.clone(), answered.clone());
        callers.spawn(async move {
            while Instant::now() < until {
                if store.sale(&id).await.is_ok() {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    callers.join_all().await;
    let answered = answered.load(Ordering::Relaxed);
    assert!(answered > 200, "{answered} readings in {FOR:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_database_still_does_what_it_can_in_postgres() {
    an_overloaded_database_still_does_what_it_can(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_database_still_does_what_it_can_in_mariadb() {
    an_overloaded_database_still_does_what_it_can(Database::Mariadb).await;
}
