//! Many sales whose rows another session holds, and one that has nothing to do with them.

use std::time::Duration;

use doorbuster::domain::Sale;
use doorbuster::process::Running;

use crate::faults::stalls::Session;
use crate::recovery::log_reach::gauge;
use crate::support::{Buyer, Database, World, at_rest, sale, until};

const LONG: Duration = Duration::from_secs(60);
const STALLED: usize = 12;

/// Each try of a stalled sale keeps a lane until the database ends its wait for the lock.
async fn many_stalled_sales_leave_a_lane_to_the_others(lanes: usize) {
    let mut world = World::new(Database::Postgres).await;
    world.set(&format!("worker.lanes={lanes}"));
    let running = world.running().await;
    let free = sale(&world.name, 99, 1);
    world.open_sale(&running.parts, &free).await;
    let stalled: Vec<Sale> = (0..STALLED).map(|nth| sale(&format!("{}x{nth}", world.name), 9, 1)).collect();
    let mut holder = Session::open(&world).await;
    for sale in &stalled {
        world.open_sale(&running.parts, sale).await;
    }
    holder.execute("BEGIN".into()).await;
    let hold = format!("UPDATE items SET sold = sold + 0 WHERE sale_id LIKE '{}x%'", world.name);
    holder.execute(hold).await;
    for sale in &stalled {
        assert_eq!(Buyer::of(&running, "ada").buy(sale.id.as_str(), "k").await.status, 202);
    }
    for sale in &stalled {
        let name = format!("doorbuster_worker_sale_stalled{{sale=\"{}\"}}", sale.id);
        until("the sale is set aside", LONG, async || {
            (gauge(&running, &name).await == Some(1.0)).then_some(())
        })
        .await;
    }
    for nth in 0..10 {
        let bought = Buyer::of(&running, &format!("user{nth}")).buy(free.id.as_str(), "k").await;
        assert_eq!(bought.status, 202, "{}", bought.text);
        until("its order has a row", LONG, async || (rows(&running, &free).await == nth + 1).then_some(()))
            .await;
    }
    for sale in &stalled {
        assert_eq!(rows(&running, sale).await, 0, "its row is locked");
    }
    holder.execute("ROLLBACK".into()).await;
    for sale in &stalled {
        assert_eq!(at_rest(&running, sale).await.live_orders, 1);
    }
    running.stop().await;
}

async fn rows(running: &Running, sale: &Sale) -> u64 {
    running.parts.store.totals(&sale.id).await.unwrap().orders
}

#[tokio::test(flavor = "multi_thread")]
async fn many_stalled_sales_leave_one_of_four_lanes_to_the_others() {
    many_stalled_sales_leave_a_lane_to_the_others(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_stalled_sales_leave_the_only_lane_to_the_others_by_turns() {
    many_stalled_sales_leave_a_lane_to_the_others(1).await;
}
