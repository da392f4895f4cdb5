//! Fronts judge the books of every sale while it sells.

use std::time::Duration;

use doorbuster::front::Signer;
use doorbuster::rehearsal::chaos::Weather;

use crate::faults::stalls::Session;
use crate::support::{Buyer, Database, Doorbuster, World, behind_proxy, sale, until};

const LONG: Duration = Duration::from_secs(60);
const BROKEN: &str = "doorbuster_audit_sales_out_of_balance";

/// A row that the sale did not write. The number of the sale moves with every order, so that no two readings are of the same
/// moment; the rows alone show the mistake.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_breaks_a_promise_is_an_alarm_while_a_crowd_buys() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100").set("audit.every_s=1");
    let (parts, sale) = (world.parts().await, sale(&world.name, 100_000, 1));
    world.open_sale(&parts, &sale).await;
    world.compare_books(&parts).await;
    let front = Doorbuster::start(&world, "front").await;
    let _worker = Doorbuster::start(&world, "worker").await;
    let tokens = Signer::new(world.config().auth());
    let crowd = async {
        for nth in 0.. {
            let buyer = Buyer::with(front.buyers.unwrap(), &tokens, &format!("user{nth}"), None);
            let answer = buyer.buy(sale.id.as_str(), "k").await;
            assert!([202, 503].contains(&answer.status), "{}", answer.text);
        }
    };
    let looks = async || front.metric("doorbuster_audit_runs_total").await;
    let watching = async {
        until("two looks at good books", LONG, async || (looks().await >= 2.0).then_some(())).await;
        assert_eq!(front.metric(BROKEN).await, 0.0);
        let mistake = format!("UPDATE items SET sold = sold + 1 WHERE sale_id = '{}'", sale.id.as_str());
        Session::open(&world).await.execute(mistake).await;
        until("the mistake is seen", LONG, async || (front.metric(BROKEN).await == 1.0).then_some(())).await;
        let orders = parts.store.totals(&sale.id).await.unwrap().orders;
        assert!(orders > 0, "rows are written meanwhile");
    };
    tokio::select! {
        () = crowd => unreachable!("it buys all the time"),
        () = watching => {}
    }
}

/// Nobody can look while Redis does not say who does. What was found before is still so.
#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_does_not_end_because_redis_is_away() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100").set("audit.every_s=1").set("redis.timeout_ms=500");
    let (parts, sale) = (world.parts().await, sale(&world.name, 10, 1));
    world.open_sale(&parts, &sale).await;
    world.compare_books(&parts).await;
    let proxy = behind_proxy(&mut world, "redis.url").await;
    let front = Doorbuster::start(&world, "front").await;
    let mut session = Session::open(&world).await;
    let mistake = format!("UPDATE items SET sold = sold + 1 WHERE sale_id = '{}'", sale.id.as_str());
    session.execute(mistake).await;
    until("the mistake is seen", LONG, async || (front.metric(BROKEN).await == 1.0).then_some(())).await;
    proxy.set(Weather::Down);
    until("nobody looks", LONG, async || {
        (front.metric("doorbuster_audit_sales_unjudged{reason=\"unread\"}").await == 1.0).then_some(())
    })
    .await;
    // The lead of the order log lasts ten seconds.
    let unwritten = "doorbuster_order_log_oldest_unwritten_seconds";
    until("perhaps nobody writes the log", LONG, async || {
        (front.metric(unwritten).await > 5.0).then_some(())
    })
    .await;
    assert_eq!(front.metric(BROKEN).await, 1.0);
    proxy.set(Weather::Fair);
    until("the log is written", LONG, async || (front.metric(unwritten).await < 5.0).then_some(())).await;
}
