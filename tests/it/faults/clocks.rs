//! Hosts whose clocks are wrong.

use std::path::Path;
use std::time::Duration;

use doorbuster::domain::{Millis, OrderStatus, Sale, Terms};
use doorbuster::front::{Role, Signer};
use doorbuster::lease::{LeaseOptions, Released};
use doorbuster::rehearsal::servers::{Ending, FakeClock, Server};

use crate::orders::webhooks;
use crate::support::{
    Buyer, Database, Doorbuster, Receiver, World, ask_redis, at_rest, id, run, sale, until,
};

const LONG: Duration = Duration::from_secs(60);

fn clock(folder: &Path, name: &str, ahead_s: i64) -> FakeClock {
    let clock =
        FakeClock::in_file(&folder.join(name)).expect("libfaketime: run scripts/install-servers test");
    clock.set(ahead_s).unwrap();
    clock
}

/// A restored database is brought up to date from its position in the order log on. If that were too late, orders would
/// be left out.
#[tokio::test(flavor = "multi_thread")]
async fn a_fast_clock_moves_no_position_in_the_order_log_ahead() {
    let (mut world, folder) = (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap());
    world.set("maintenance.every_ms=100");
    let (parts, sale) = (world.parts().await, sale(&world.name, 9, 1));
    world.open_sale(&parts, &sale).await;
    world.compare_books(&parts).await;
    let fast = clock(folder.path(), "front", 600);
    let front = Doorbuster::start_with_clock(&world, "front", &fast).await;
    let position =
        until("the position is recorded", LONG, async || parts.store.replay_from().await.ok()?).await;
    assert!(position <= Millis::now(), "{position} is later than {}", Millis::now());
    drop(front);
}

/// A front is five minutes ahead, and the clock of a worker jumps from ten minutes ahead to ten minutes behind. The
/// database's clock decides when an order expires.
#[tokio::test(flavor = "multi_thread")]
async fn orders_are_persisted_and_expire_in_time_by_wrong_clocks() {
    let (mut world, folder) = (World::new(Database::Postgres).await, tempfile::tempdir().unwrap());
    world.set("maintenance.every_ms=200");
    let parts = world.parts().await;
    let terms = Terms { pay_within_s: Some(3), ..Terms::default() };
    let sale = Sale { terms, ..sale(&world.name, 20, 1) };
    world.open_sale(&parts, &sale).await;
    world.compare_books(&parts).await;
    let (fast, jumping) = (clock(folder.path(), "front", 300), clock(folder.path(), "worker", 600));
    let front = Doorbuster::start_with_clock(&world, "front", &fast).await;
    let worker = Doorbuster::start_with_clock(&world, "worker", &jumping).await;
    let tokens = Signer::new(world.config().auth());
    let mut orders = Vec::new();
    for user in 0..20 {
        if user == 10 {
            jumping.set(-600).unwrap();
        }
        let buyer = Buyer::with(front.buyers.unwrap(), &tokens, &format!("user{user}"), None);
        let answer = until("the front sells", LONG, async || {
            let answer = buyer.buy(sale.id.as_str(), "k").await;
            matches!(answer.status, 200..=202).then_some(answer)
        })
        .await;
        orders.push(id(answer.order_id()));
    }
    for order in orders {
        let row = until("the order expires", LONG, async || {
            let row = parts.store.order(order).await.ok()??;
            (row.status == OrderStatus::Expired).then_some(row)
        })
        .await;
        let lived = row.updated_at.0 - row.recorded_at.0;
        assert!((3_000..30_000).contains(&lived), "expired after {lived} ms");
    }
    drop((front, worker));
}

/// The time of an act says which of two came last, in lists and where a later act ends an earlier one.
#[tokio::test(flavor = "multi_thread")]
async fn a_fast_clock_makes_no_act_of_an_operator_later_than_it_was() {
    let (world, folder) = (World::new(Database::Postgres).await, tempfile::tempdir().unwrap());
    let (parts, sale) = (world.parts().await, sale(&world.name, 9, 1));
    world.open_sale(&parts, &sale).await;
    world.compare_books(&parts).await;
    let fast = clock(folder.path(), "front", 300);
    let front = Doorbuster::start_with_clock(&world, "front", &fast).await;
    let tokens = Signer::new(world.config().auth());
    let operator = Buyer::with(front.operations, &tokens, "op", Some(Role::Admin));
    let paused = operator.post(&format!("/v1/admin/sales/{}:pause", sale.id), &[], "").await;
    assert_eq!(paused.status, 200, "{}", paused.text);
    let value = r#"{"name":"worker.lanes","value":"2","reason":"the database is slow"}"#;
    let set = operator.post("/v1/admin/settings:set", &[], value).await;
    assert_eq!(set.status, 200, "{}", set.text);
    let resume = ["sale", "resume", sale.id.as_str()];
    let (code, out, err) = run(Some(&world), &resume).await;
    assert_eq!(code, 0, "{out}{err}");
    let acts = parts.store.latest_acts(3).await.unwrap();
    let kinds: Vec<&str> = acts.iter().map(|act| act.kind.as_str()).collect();
    assert_eq!(kinds, ["resume", "settings set", "pause"]);
    assert!(acts.iter().all(|act| act.at <= Millis::now()), "{acts:?}");
    let unset = ["settings", "unset", "worker.lanes"];
    let (code, out, err) = run(Some(&world), &unset).await;
    assert_eq!(code, 0, "{out}{err}");
    // The fast front has given its act an id that sorts later.
    let last = parts.store.latest_acts(1).await.unwrap().remove(0);
    assert_eq!(last.kind, "settings unset");
    drop(front);
}

/// Receivers refuse what is signed for a time that is minutes away.
#[tokio::test(flavor = "multi_thread")]
async fn a_front_with_a_fast_clock_signs_webhooks_with_the_right_time() {
    let (world, folder) = (webhooks::world(Database::Postgres).await, tempfile::tempdir().unwrap());
    let (parts, sale) = (world.parts().await, sale(&world.name, 9, 1));
    world.open_sale(&parts, &sale).await;
    world.compare_books(&parts).await;
    let receiver = Receiver::start().await;
    webhooks::add(&world, "shop", &receiver).await;
    let fast = clock(folder.path(), "front", 300);
    let front = Doorbuster::start_with_clock(&world, "front", &fast).await;
    let worker = Doorbuster::start(&world, "worker").await;
    let buyer = Buyer::with(front.buyers.unwrap(), &Signer::new(world.config().auth()), "ada", None);
    until("the front sells", LONG, async || {
        (buyer.buy(sale.id.as_str(), "k").await.status == 202).then_some(())
    })
    .await;
    let delivered = until("it is delivered", LONG, async || receiver.delivered().into_iter().next()).await;
    let away = delivered.timestamp - Millis::now().0 / 1_000;
    assert!(away.abs() < 60, "{away} s");
    drop((front, worker));
}

/// A failover brings a master whose host has another time, and another one brings the first back. Leases, rates and the
/// deadlines of clicks are counted by this clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_of_redis_that_steps_stops_no_sale() {
    let (mut world, folder) = (World::new(Database::Postgres).await, tempfile::tempdir().unwrap());
    let steps = clock(folder.path(), "redis-clock", 0);
    let redis = Server::start_redis_with_clock(folder.path(), &steps).await.expect("a private Redis");
    world.set(&format!("redis.url={}", redis.url));
    let running = world.running().await;
    let terms = Terms { user_rate: "4/3600s".parse().ok(), ..Terms::default() };
    let sale = Sale { terms, ..sale(&world.name, 1_000, 9) };
    world.open_sale(&running.parts, &sale).await;
    let (mut bought, mut slowest) = (0, Duration::ZERO);
    let options = LeaseOptions::lasting(Duration::from_secs(5));
    let held = running.parts.leases.take("_probe", ["job"], options).await.unwrap().guard.expect("free");
    let others = world.parts().await.leases;
    for ahead_s in [0, 10, 0, -10, 0] {
        steps.set(ahead_s).unwrap();
        let mut has_stepped = false;
        let mut after_the_step = 0;
        while after_the_step < 40 {
            let began = std::time::Instant::now();
            let answer = Buyer::of(&running, &format!("user{bought}")).buy(sale.id.as_str(), "k").await;
            assert_eq!(answer.status, 202, "{ahead_s} s ahead: {}", answer.text);
            bought += 1;
            slowest = slowest.max(began.elapsed());
            assert_eq!(others.take("_probe", ["job"], options).await.unwrap().held, [false], "{ahead_s} s");
            assert!(held.is_valid_for(Duration::from_millis(1)), "{ahead_s} s ahead");
            let now: (i64, i64) = ask_redis(&redis.url, "TIME").await;
            let ahead = now.0 * 1_000 - Millis::now().0;
            has_stepped |= (ahead - ahead_s * 1_000).abs() < 3_000;
            after_the_step += u32::from(has_stepped);
        }
    }
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    assert_eq!(held.release().await.unwrap(), Released::Freed);
    assert_eq!(others.take("_probe", ["job"], options).await.unwrap().held, [true]);
    // The rate counts the first order from before the steps and three more, as it would without them.
    for (key, status) in [("b", 202), ("c", 202), ("d", 202), ("e", 429)] {
        let again = Buyer::of(&running, "user0").buy(sale.id.as_str(), key).await;
        assert_eq!(again.status, status, "{key}: {}", again.text);
    }
    assert_eq!(at_rest(&running, &sale).await.live_orders, bought + 3);
    running.stop().await;
    redis.stop(Ending::AtOnce).await;
}
