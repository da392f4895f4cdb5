//! Expiry while the database holds up one sale.

use std::time::Duration;

use doorbuster::domain::Sale;

use super::stalls::Session;
use crate::support::{Database, World, buy, sale, until};

const LONG: Duration = Duration::from_secs(60);

/// Five orders in each of so many sales whose item rows a session of somebody else holds, and two in a sale that comes after
/// them in the order of the ids. All are overdue soon.
async fn locked_sales_do_not_keep_another_ones_orders_from_expiring(world: World, count: usize) {
    let running = world.running().await;
    let mut locked: Vec<Sale> = (0..count).map(|nth| sale(&format!("{}a{nth}", world.name), 9, 1)).collect();
    let mut free = sale(&format!("{}b", world.name), 9, 1);
    for sale in locked.iter_mut().chain([&mut free]) {
        sale.terms.pay_within_s = Some(6);
        world.open_sale(&running.parts, sale).await;
    }
    for sale in &locked {
        buy(&running, sale, 0..5).await;
    }
    let live = async |sale: &Sale| running.parts.store.totals(&sale.id).await.unwrap().live_orders;
    for sale in &locked {
        until("the orders have rows", LONG, async || (live(sale).await == 5).then_some(())).await;
    }
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    holder.execute(format!("UPDATE items SET sold = sold + 0 WHERE sale_id LIKE '{}a%'", world.name)).await;
    buy(&running, &free, 0..2).await;

    let left =
        async |sale: &Sale| running.parts.gate.describe(&sale.id).await.unwrap().expect("open").items[0].left;
    until("the units of the free sale are back", LONG, async || {
        (live(&free).await == 0 && left(&free).await == 9).then_some(())
    })
    .await;
    for sale in &locked {
        assert_eq!(live(sale).await, 5, "its row is locked");
    }
    holder.execute("ROLLBACK".into()).await;
    for sale in &locked {
        until("the units of the others are back", LONG, async || {
            (live(sale).await == 0 && left(sale).await == 9).then_some(())
        })
        .await;
    }
    running.stop().await;
}

/// More orders of the locked sale are overdue than a round reads at a time.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_does_not_keep_the_orders_of_other_sales_from_expiring() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.batch=3").set("maintenance.every_ms=100");
    locked_sales_do_not_keep_another_ones_orders_from_expiring(world, 1).await;
}

/// Each costs a wait for its lock: together they take longer than a front leads without a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn many_locked_rows_do_not_keep_the_orders_of_other_sales_from_expiring() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100");
    locked_sales_do_not_keep_another_ones_orders_from_expiring(world, 10).await;
}
