//! A front and Redis that do not meet as they should: calls that arrive late, and a master that is none any more.

use std::time::Duration;

use doorbuster::domain::{Act, ActRequest, OrderId, SaleState};
use doorbuster::gate::{Outcome, Settlement, Versions};
use doorbuster::process::{Role, Running};
use doorbuster::rehearsal::chaos::Weather;
use doorbuster::rehearsal::servers::{Ending, Kind, Server};

use crate::recovery::pages::address;
use crate::recovery::repair::{act, forget, left};
use crate::support::{
    Buyer, Database, World, ask_redis, at_rest, behind_proxy, buy, order as order_of, private_redis, sale,
    until,
};

const LONG: Duration = Duration::from_secs(40);

/// The way of one of two fronts to Redis stands still with clicks under way. Their buyers hear at the other front that
/// the sale is sold out. Then units come back, and the old script calls arrive.
#[tokio::test(flavor = "multi_thread")]
async fn who_heard_sold_out_gets_no_order_from_an_earlier_click() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("redis.timeout_ms=500").set("intake.sale_cache_ms=60000");
    let front = world.running_as(Role::Front).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let held_up = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 4, 1);
    world.open_sale(&front.parts, &sale).await;
    // The other front has the sale in its cache, and has spoken with Redis.
    let first = Buyer::of(&held_up, "first").buy(sale.id.as_str(), "k").await;
    assert_eq!(first.status, 202, "{}", first.text);
    let bought = buy(&front, &sale, 0..3).await;

    proxy.set(Weather::Frozen);
    let users: Vec<String> = (0..20).map(|nth| format!("late{nth}")).collect();
    let unknown = users.iter().map(|user| async {
        let answer = Buyer::of(&held_up, user).buy(sale.id.as_str(), "k").await;
        assert_eq!((answer.status, answer.code()), (504, "outcome_unknown"), "{}", answer.text);
    });
    futures_util::future::join_all(unknown).await;
    for user in &users {
        let answer = Buyer::of(&front, user).buy(sale.id.as_str(), "k").await;
        assert_eq!((answer.status, answer.code()), (409, "sold_out"), "{}", answer.text);
    }
    until("the orders have their rows", LONG, async || {
        (front.parts.store.totals(&sale.id).await.ok()?.live_orders == 4).then_some(())
    })
    .await;
    for order in bought {
        act(&front.parts, &sale, order, Act::Cancel).await;
    }
    until("the units are back", LONG, async || (left(&front.parts, &sale).await == 3).then_some(())).await;
    proxy.set(Weather::Fair);
    // A click of now gets a unit on the same way, after those that were held up.
    let next = until("the way is open", LONG, async || {
        Some(Buyer::of(&held_up, "next").buy(sale.id.as_str(), "k").await)
            .filter(|answer| answer.status < 500)
    })
    .await;
    assert!([200, 202].contains(&next.status), "{}", next.text);
    assert_eq!(left(&front.parts, &sale).await, 2);
    assert_eq!(at_rest(&front, &sale).await.live_orders, 2);
    worker.stop().await;
    held_up.stop().await;
    front.stop().await;
}

/// The way of a front to Redis stands still while an operator resumes a sale there. Another operator pauses it at the other
/// front.
#[tokio::test(flavor = "multi_thread")]
async fn a_resume_that_was_held_up_does_not_undo_a_later_pause() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("redis.timeout_ms=500");
    let front = world.running_as(Role::Front).await;
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let held_up = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 4, 1);
    world.open_sale(&front.parts, &sale).await;
    let by = ActRequest::by("ada");
    // Redis has given the other front its time, and knows the scripts.
    held_up.control.pause(&sale.id, None, &by).await.unwrap();

    proxy.set(Weather::Frozen);
    let resumed = held_up.control.resume(&sale.id, &by).await;
    assert!(resumed.is_err(), "{resumed:?}");
    front.control.pause(&sale.id, None, &by).await.unwrap();
    proxy.set(Weather::Fair);
    until("the way is open", LONG, async || held_up.parts.gate.clock().await.ok()).await;
    let state = async || front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded").state;
    assert_eq!(state().await, SaleState::Paused);
    // The same act is done if it is sent again.
    held_up.control.resume(&sale.id, &by).await.unwrap();
    assert_eq!(state().await, SaleState::Open);
    held_up.stop().await;
    front.stop().await;
}

/// After a rebuild the gate lacks an order. A front has it adopted, on a way that stands still; the buyer cancels it.
#[tokio::test(flavor = "multi_thread")]
async fn an_adoption_that_was_held_up_does_not_revive_a_cancelled_order() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("redis.timeout_ms=500").set("gate.rebuild=manual");
    let running = world.running().await;
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let held_up = world.parts().await;
    let sale = sale(&world.name, 4, 1);
    world.open_sale(&running.parts, &sale).await;
    let order = buy(&running, &sale, 0..1).await[0];
    at_rest(&running, &sale).await;
    let row = running.parts.store.order(order).await.unwrap().expect("a row").order;
    // As after a rebuild that knew nothing of the order.
    forget(&world, &sale).await;
    let second = Versions { epoch: 2, ..Versions::default() };
    running.parts.gate.load(&sale, &second).await.unwrap();
    running.parts.gate.move_sale(&sale.id, SaleState::Open, &[SaleState::Draft]).await.unwrap();

    let in_a_second = || tokio::time::Instant::now() + Duration::from_secs(1);
    // Redis has given this process its time, and knows the script.
    let other = order_of(&sale.id, "other", 77);
    held_up.gate.adopt(&other, in_a_second()).await.unwrap().expect("adopted");
    proxy.set(Weather::Frozen);
    let adopted = held_up.gate.adopt(&row, in_a_second()).await;
    assert!(adopted.is_err(), "{adopted:?}");
    act(&running.parts, &sale, order, Act::Cancel).await;
    proxy.set(Weather::Fair);
    until("the way is open", LONG, async || held_up.gate.clock().await.ok()).await;
    assert_eq!(left(&running.parts, &sale).await, 3, "of four units, one belongs to the other order");
    running.stop().await;
}

/// A rebuilt gate lacks an order, and admits its user again. That second order is to be replaced by the first, on a way that
/// stands still; the buyer cancels the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_that_was_held_up_does_not_revive_a_cancelled_order() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("redis.timeout_ms=500").set("gate.rebuild=manual");
    let front = world.running_as(Role::Front).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let held_up = world.parts().await;
    let sale = sale(&world.name, 4, 1);
    world.open_sale(&front.parts, &sale).await;
    let ada = Buyer::of(&front, "ada");
    let winner: OrderId = ada.buy(sale.id.as_str(), "first").await.order_id().parse().unwrap();
    at_rest(&front, &sale).await;
    worker.stop().await;
    forget(&world, &sale).await;
    front.parts.gate.load(&sale, &Versions { epoch: 2, ..Versions::default() }).await.unwrap();
    front.parts.gate.move_sale(&sale.id, SaleState::Open, &[SaleState::Draft]).await.unwrap();
    let loser = ada.buy(sale.id.as_str(), "second").await.order_id().to_owned();
    assert_ne!(loser, winner.to_string());

    let winner = front.parts.store.order(winner).await.unwrap().expect("a row").order;
    let replaced = |id: OrderId| {
        let outcome = Outcome::Replaced(Some(Box::new(winner.clone())));
        [Settlement { id, user: winner.user.clone(), outcome }]
    };
    let in_a_second = || tokio::time::Instant::now() + Duration::from_secs(1);
    // Redis has given this process its time, and knows the script.
    let nobody = order_of(&sale.id, "nobody", 77).id;
    held_up.gate.settle_until(&sale.id, &replaced(nobody), in_a_second()).await.unwrap();
    proxy.set(Weather::Frozen);
    let settled = held_up.gate.settle_until(&sale.id, &replaced(loser.parse().unwrap()), in_a_second()).await;
    assert!(settled.is_err(), "{settled:?}");
    act(&front.parts, &sale, winner.id, Act::Cancel).await;
    proxy.set(Weather::Fair);
    until("the way is open", LONG, async || held_up.gate.clock().await.ok()).await;

    assert_eq!(ada.buy(sale.id.as_str(), "second").await.order_id(), loser);
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    assert_eq!(at_rest(&front, &sale).await.live_orders, 1);
    assert_eq!(left(&front.parts, &sale).await, 3);
    worker.stop().await;
    front.stop().await;
}

/// A failover by hand, and the connections of this front stay with the former master: nobody tells them to go.
#[tokio::test(flavor = "multi_thread")]
async fn a_former_master_answers_no_buyer() {
    let (mut world, folder, other) =
        (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let redis = private_redis(&mut world, folder.path()).await;
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 1, 1);
    world.open_sale(&front.parts, &sale).await;
    let ada = Buyer::of(&front, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(order.status, 202, "{}", order.text);
    let bob = Buyer::of(&front, "bob");
    assert_eq!(bob.buy(sale.id.as_str(), "k").await.code(), "sold_out");

    // A replica catches up and takes over, as `FAILOVER` has it.
    let replica = Server::start(Kind::Redis, other.path()).await.unwrap();
    let (from, to) = (address(&redis.url), address(&replica.url));
    let follow = format!("REPLICAOF {} {}", from.ip(), from.port());
    let _: String = ask_redis(&replica.url, &follow).await;
    until("the master knows that its replica is in step", LONG, async || {
        let info: String = ask_redis(&redis.url, "INFO replication").await;
        info.contains("state=online").then_some(())
    })
    .await;
    let failover = format!("FAILOVER TO {} {}", to.ip(), to.port());
    let _: String = ask_redis(&redis.url, &failover).await;
    until("the former master is a replica", LONG, async || {
        let info: String = ask_redis(&redis.url, "INFO replication").await;
        (info.contains("role:slave") && info.contains("master_failover_state:no-failover")).then_some(())
    })
    .await;
    // From here on it learns nothing any more.
    let _: String = ask_redis(&redis.url, "REPLICAOF 127.0.0.1 1").await;
    until("the last reading is too old to refuse by", LONG, async || {
        (bob.buy(sale.id.as_str(), "k2").await.status == 503).then_some(())
    })
    .await;
    let path = format!("/v1/sales/{}/orders", sale.id);
    for _ in 0..20 {
        let refused = bob.buy(sale.id.as_str(), "k2").await;
        assert_eq!((refused.status, refused.code()), (503, "gate_unavailable"), "{}", refused.text);
        for path in [format!("{path}/{}", order.order_id()), format!("{path}/mine")] {
            let read = ada.get(&path).await;
            assert_eq!((read.status, read.code()), (503, "status_unavailable"), "{}", read.text);
        }
        let shown = ada.get(&format!("/v1/sales/{}", sale.id)).await;
        assert_eq!(shown.status, 503, "{}", shown.text);
    }
    front.stop().await;
    redis.stop(Ending::AtOnce).await;
    replica.stop(Ending::AtOnce).await;
}
