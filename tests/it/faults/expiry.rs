//! Expiry while the database holds up one sale.

use std::time::Duration;

use super::stalls::Session;
use crate::support::{Database, World, at_rest, buy, sale, until};

const LONG: Duration = Duration::from_secs(60);

/// More orders of the locked sale are overdue than a round reads at a time, and for longer than those of the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_does_not_keep_the_orders_of_other_sales_from_expiring() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.batch=3").set("maintenance.every_ms=100");
    let running = world.running().await;
    let [mut locked, mut free] =
        [format!("{}a", world.name), world.name.clone()].map(|name| sale(&name, 9, 1));
    for sale in [&mut locked, &mut free] {
        sale.terms.pay_within_s = Some(6);
        world.open_sale(&running.parts, sale).await;
    }
    buy(&running, &locked, 0..5).await;
    at_rest(&running, &locked).await;
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    let hold = format!("UPDATE items SET sold = sold + 0 WHERE sale_id = '{}'", locked.id.as_str());
    holder.execute(hold).await;
    buy(&running, &free, 0..2).await;

    let live = async |sale| running.parts.store.totals(sale).await.unwrap().live_orders;
    let left = async |sale| running.parts.gate.describe(sale).await.unwrap().expect("open").items[0].left;
    until("the units of the free sale are back", LONG, async || {
        (live(&free.id).await == 0 && left(&free.id).await == 9).then_some(())
    })
    .await;
    assert_eq!(live(&locked.id).await, 5, "its row is locked");
    holder.execute("ROLLBACK".into()).await;
    until("the units of the other are back", LONG, async || {
        (live(&locked.id).await == 0 && left(&locked.id).await == 9).then_some(())
    })
    .await;
    running.stop().await;
}
