//! What this build cannot read keeps nothing from what it can.

use std::time::Duration;

use doorbuster::rehearsal::servers::Ending;

use crate::faults::stalls::Session;
use crate::support::{Buyer, Database, World, ask_redis, at_rest, buy, private_redis, sale, until};

/// A sale whose terms a later build wrote, and a name in Redis that is no sale's. Redis restarts, and the books must be
/// compared before anything is sold.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_sale_keeps_no_other_from_selling() {
    let (mut world, folder) = (World::new(Database::Postgres).await, tempfile::tempdir().unwrap());
    let redis = private_redis(&mut world, folder.path()).await;
    let running = world.running().await;
    let (shoes, later) = (sale(&world.name, 9, 1), sale(&format!("{}-later", world.name), 9, 1));
    for sale in [&shoes, &later] {
        world.open_sale(&running.parts, sale).await;
    }
    buy(&running, &shoes, 0..2).await;
    at_rest(&running, &shoes).await;
    running.stop().await;

    let unknown = format!("UPDATE sales SET late_payment = 'lottery' WHERE id = '{}'", later.id);
    Session::open(&world).await.execute(unknown).await;
    let config = world.config();
    let _added: i64 =
        ask_redis(&config.redis.url, &format!("SADD {}:sales no!id", config.redis.prefix)).await;
    redis.stop(Ending::AtOnce).await;

    let redis = private_redis(&mut world, folder.path()).await;
    let running = world.running().await;
    let ada = Buyer::of(&running, "ada");
    until("the other sale sells", Duration::from_secs(60), async || {
        ada.try_buy(shoes.id.as_str(), "k").await.filter(|answer| answer.status == 202)
    })
    .await;
    // The worker commits, and the books are read.
    at_rest(&running, &shoes).await;
    let (readable, unreadable) = running.parts.store.readable_sales().await.unwrap();
    assert_eq!((readable.len(), unreadable), (1, 1));
    running.stop().await;
    redis.stop(Ending::AtOnce).await;
}
