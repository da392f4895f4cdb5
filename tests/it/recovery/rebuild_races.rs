//! Orders, workers and other rebuilds between two steps of a rebuild.

use std::time::Duration;

use doorbuster::domain::{Act, ActRequest, SaleState, Verdict};
use doorbuster::gate::Moved;
use doorbuster::process::{Role, Running};
use doorbuster::rehearsal::chaos::Weather;

use super::repair::{act, assert_none_failed, forget, left, lost_mid_sale, rebuild};
use crate::faults::stalls::Session;
use crate::support::{Database, World, at_rest, attempt, behind_proxy, buy, sale, until, verdicts};

const LONG: Duration = Duration::from_secs(40);

/// Its unit is counted among those left, so its return is done. If orders end all the time, no repetition would help.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_ends_while_the_rows_are_read_does_not_stop_a_rebuild() {
    let (mut world, front, sale, orders) = lost_mid_sale(12).await;
    world.set("redis.timeout_ms=5000");
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let parts = world.parts().await;
    let rebuild = rebuild(&world, &parts);
    let begun = rebuild.begin(&sale.id).await.unwrap();
    let gathered = rebuild.gather(&begun).await.unwrap();
    // The load knows whose units are on their way back, and waits for Redis before it reads the rows.
    proxy.set(Weather::Frozen);
    let progress = |_: &str, _: u64| {};
    let (loaded, ()) = tokio::join!(rebuild.load(&begun, &gathered, &progress), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        act(&front.parts, &sale, orders[2], Act::Cancel).await;
        proxy.set(Weather::Fair);
    });
    rebuild.finish(&begun, &gathered, loaded.unwrap(), &progress).await.unwrap();
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    at_rest(&front, &sale).await;
    assert_eq!(left(&front.parts, &sale).await, 5);
    worker.stop().await;
    front.stop().await;
}

/// A rebuild stands still after it has compared the books. Meanwhile Redis loses the gate again, and another rebuild has
/// frozen it and loaded nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_does_not_open_a_gate_that_a_later_one_has_frozen() {
    let (world, front, sale, _) = lost_mid_sale(12).await;
    let rebuild = rebuild(&world, &front.parts);
    let begun = rebuild.begin(&sale.id).await.unwrap();
    let gathered = rebuild.gather(&begun).await.unwrap();
    rebuild.load(&begun, &gathered, &|_, _| {}).await.unwrap();
    let gate = &front.parts.gate;
    let epoch = gate.describe(&sale.id).await.unwrap().expect("loaded").number.epoch;
    gate.begin_rebuild(&sale, epoch + 1).await.unwrap();
    let moved = gate.move_rebuilt(&sale.id, SaleState::Open, epoch).await.unwrap();
    assert!(matches!(moved, Moved::Refused(SaleState::Frozen)), "{moved:?}");
    let moved = gate.move_rebuilt(&sale.id, SaleState::Open, epoch + 1).await.unwrap();
    assert!(matches!(moved, Moved::Now(_)), "{moved:?}");
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_does_not_wait_for_workers_to_drain_a_backlog() {
    let mut world = World::new(Database::Postgres).await;
    world.set("worker.batch=5");
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 2_000, 1);
    world.open_sale(&front.parts, &sale).await;
    buy(&front, &sale, 0..1).await;
    let publisher = front.parts.publisher.clone().expect("a front publishes");
    for from in (0..1_500).step_by(100) {
        let attempts: Vec<_> =
            (from..from + 100).map(|nth| attempt(&sale.id, &format!("crowd{nth}"), Some("k"), 1)).collect();
        let mut orders = Vec::new();
        for verdict in verdicts(&front.parts.gate, &sale.id, &attempts).await {
            let Verdict::Accepted(order) = verdict else { panic!("{verdict:?}") };
            orders.push(order);
        }
        let publishing = orders.iter().map(|order| publisher.publish(std::slice::from_ref(order)));
        for published in futures_util::future::join_all(publishing).await {
            published.unwrap();
        }
    }
    forget(&world, &sale).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    until("the worker is at work", LONG, async || {
        (front.parts.store.totals(&sale.id).await.unwrap().live_orders > 20).then_some(())
    })
    .await;
    // From here on it cannot write orders of this sale.
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    holder.execute(format!("UPDATE items SET sold = sold + 0 WHERE sale_id = '{}'", sale.id)).await;
    let rebuilt =
        rebuild(&world, &front.parts).run(&sale.id, &ActRequest::by("test"), &|_, _| {}).await.unwrap();
    assert!(rebuilt.in_flight > 0, "the backlog drained too soon: {rebuilt:?}");
    holder.execute("ROLLBACK".into()).await;
    assert_eq!(left(&front.parts, &sale).await, 499);
    assert_eq!(at_rest(&front, &sale).await.live_orders, 1_501);
    assert_none_failed(&front, &sale).await;
    worker.stop().await;
    front.stop().await;
}
