//! The lease against a real Redis.

use std::time::Duration;

use doorbuster::lease::Leases;

use crate::support::{Database, World, until};

const LONG: Duration = Duration::from_secs(30);

async fn leases() -> (World, Leases) {
    let world = World::new(Database::Sqlite).await;
    let config = world.config();
    let leases = Leases::open(&config.redis(), &config.redis.prefix).expect("leases");
    (world, leases)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_has_one_holder_and_a_batch_takes_what_is_free() {
    let (_world, leases) = leases().await;
    let first = leases.take("sale", ["ada"], LONG).await.unwrap();
    assert_eq!(first.held, [true]);
    let second = leases.take("sale", ["ada", "bob", "cy"], LONG).await.unwrap();
    assert_eq!(second.held, [false, true, true]);
    assert!(second.guard.token() > first.guard.token());
    first.guard.release().await.unwrap();
    let third = leases.take("sale", ["ada", "bob"], LONG).await.unwrap();
    assert_eq!(third.held, [true, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_late_release_of_an_expired_holder_frees_nobody_else() {
    let (_world, leases) = leases().await;
    let expired = leases.take("sale", ["ada"], Duration::from_millis(50)).await.unwrap();
    let next = until("the lease ends by itself", Duration::from_secs(10), async || {
        Some(leases.take("sale", ["ada"], LONG).await.unwrap()).filter(|taken| taken.held[0])
    })
    .await;
    assert!(!expired.guard.is_valid_for(Duration::ZERO), "the holder can know that its lease is over");
    let old_token = expired.guard.token();
    expired.guard.release().await.unwrap();
    assert_eq!(leases.take("sale", ["ada"], LONG).await.unwrap().held, [false]);
    assert!(next.guard.token() > old_token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_guard_releases_and_a_renewed_one_lasts() {
    let (_world, leases) = leases().await;
    drop(leases.take("sale", ["ada"], LONG).await.unwrap());
    let mut taken = until("a dropped guard releases", Duration::from_secs(10), async || {
        Some(leases.take("sale", ["ada"], Duration::from_secs(2)).await.unwrap())
            .filter(|taken| taken.held[0])
    })
    .await;
    assert!(taken.guard.renew().await.unwrap());
    assert!(taken.guard.is_valid_for(Duration::from_secs(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_also_when_redis_lost_its_data() {
    let (world, leases) = leases().await;
    let before = leases.take("sale", ["ada"], LONG).await.unwrap().guard.token();
    let client = redis::Client::open(crate::support::servers().redis.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let fence = format!("{}:{{sale}}:fence", world.name);
    let () = redis::cmd("DEL").arg(fence).query_async(&mut connection).await.unwrap();
    let after = leases.take("sale", ["bob"], LONG).await.unwrap().guard.token();
    assert!(after > before, "{after} after {before}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_gives_an_error_and_no_hang() {
    let (mut world, _leases) = leases().await;
    world.set("redis.url=redis://127.0.0.1:1").set("redis.timeout_ms=200");
    let config = world.config();
    let leases = Leases::open(&config.redis(), "p").expect("leases");
    let taken = tokio::time::timeout(Duration::from_secs(5), leases.take("sale", ["ada"], LONG)).await;
    assert!(taken.expect("no hang").is_err());
}
