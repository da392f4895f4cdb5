//! Moving changes from the database's log outbox to the order log.

use std::time::Duration;

use doorbuster::maintenance::write_log;
use doorbuster::queue::OrderLog;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::seams::queue::connected;
use crate::seams::store::{claim, orders};
use crate::support::{Database, World, sale, until};

/// A front of a later build has written them, and leads no more. There are more of them than one message has entries.
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_this_build_cannot_read_hold_up_no_other() {
    let world = World::new(Database::Postgres).await;
    let store = world.parts().await.store;
    let log = OrderLog::with(world.config().queue(), connected(&world).await);
    until("the order log answers", Duration::from_secs(60), async || log.head().await.ok()).await;
    let sale = sale(&world.name, 1_000, 1);
    store.create_sale(&sale).await.unwrap();
    let claims: Vec<_> = orders(&sale, 0..600).iter().map(|order| claim(order, 1)).collect();
    store.record(&claims, &|| true).await.unwrap();
    let mut direct = PgConnection::connect(&world.config().database.url).await.unwrap();
    let oldest = "INSERT INTO log_outbox (id, kind, sale_id, reference, at_ms) \
         SELECT ('00000000-0000-0000-0000-' || lpad(to_hex(n), 12, '0'))::uuid, 'later', 'drop', n::text, 0 \
         FROM generate_series(1, 300) AS n";
    direct.execute(oldest).await.unwrap();
    let changed = "INSERT INTO log_outbox (id, kind, sale_id, reference, at_ms) \
         SELECT id, 'order', sale_id, id::text, 0 FROM orders";
    direct.execute(changed).await.unwrap();
    let changes = store.unlogged(5_000).await.unwrap();
    assert_eq!(write_log(&store, &log).await.unwrap(), changes.entries.len());
    assert!(changes.entries.len() >= 600, "{} entries", changes.entries.len());
    let left = store.unlogged(5_000).await.unwrap();
    assert_eq!((left.read, left.entries.len()), (300, 0), "they wait for a build that can read them");
}
