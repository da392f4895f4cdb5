//! The database is asked for more than it can do. It must still be used as well as it can be: if every caller waited for a
//! connection until its time limit ended, no query would finish. A buyer who only reads their order waits behind no change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use doorbuster::domain::{Sale, Terms};
use doorbuster::front::Role as OperatorRole;
use doorbuster::rehearsal::chaos::Weather;
use doorbuster::store::Store;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::faults::stalls::Session;
use crate::support::{Buyer, Database, World, at_rest, behind_proxy, buy, sale, until};

const CONNECTIONS: usize = 2;
const LIMIT: Duration = Duration::from_secs(2);
/// How many ask again and again.
const CALLERS: usize = 1_000;

/// How often so many callers read a sale in a second.
async fn readings(store: &Store, sale: &Sale, callers: usize) -> f64 {
    const FOR: Duration = Duration::from_secs(10);
    let (answered, until) = (Arc::new(AtomicU32::new(0)), Instant::now() + FOR);
    let mut asking = JoinSet::new();
    for nth in 0..callers {
        // One after the other: if all began at once, all would give up at once, and those after them find nobody waiting.
        let begins = LIMIT.mul_f64(nth as f64 / callers as f64);
        let (store, id, answered) = (store.clone(), sale.id.clone(), answered.clone());
        asking.spawn(async move {
            tokio::time::sleep(begins).await;
            while Instant::now() < until {
                if store.sale(&id).await.is_ok() {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    asking.join_all().await;
    f64::from(answered.load(Ordering::Relaxed)) / FOR.as_secs_f64()
}

async fn an_overloaded_database_still_does_what_it_can(database: Database) {
    let mut world = World::new(database).await;
    world
        .set(&format!("database.timeout_ms={}", LIMIT.as_millis()))
        .set(&format!("database.connections={CONNECTIONS}"));
    let proxy = behind_proxy(&mut world, "database.url").await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&parts, &sale).await;
    // A thousand callers would then have to wait for several times as long as they may.
    proxy.set(Weather::Slow(Duration::from_millis(5)));
    let calm = readings(&parts.store, &sale, CONNECTIONS).await;
    let overloaded = readings(&parts.store, &sale, CALLERS).await;
    assert!(overloaded > calm / 4.0, "{overloaded:.1} readings a second instead of {calm:.1}");
    println!("{overloaded:.1} readings a second instead of {calm:.1}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_database_still_does_what_it_can_in_postgres() {
    an_overloaded_database_still_does_what_it_can(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_database_still_does_what_it_can_in_mariadb() {
    an_overloaded_database_still_does_what_it_can(Database::Mariadb).await;
}

/// How many cancel at once.
const CANCELLING: u32 = 60;

/// Sixty buyers cancel while a session of somebody else holds the place of their sale, which each change needs last.
async fn buyers_read_their_orders_while_changes_wait(database: Database) {
    let mut world = World::new(database).await;
    world.set("database.connections=4");
    let running = world.running().await;
    let sale = sale(&world.name, 100, 1);
    world.open_sale(&running.parts, &sale).await;
    let orders = buy(&running, &sale, 0..CANCELLING).await;
    at_rest(&running, &sale).await;
    let path = |nth: u32| format!("/v1/sales/{}/orders/{}", sale.id, orders[nth as usize]);
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    holder.execute(format!("UPDATE places SET number = number + 0 WHERE sale_id = '{}'", sale.id)).await;

    let mut cancelling = JoinSet::new();
    for nth in 0..CANCELLING {
        let (buyer, path) = (Buyer::of(&running, &format!("user{nth}")), format!("{}:cancel", path(nth)));
        cancelling.spawn(async move {
            while buyer.post(&path, &[], "").await.status != 200 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }
    let until = Instant::now() + Duration::from_secs(8);
    let (mut reads, mut unread) = (0, Vec::new());
    while Instant::now() < until {
        let nth = reads % CANCELLING;
        let answer = Buyer::of(&running, &format!("user{nth}")).get(&path(nth)).await;
        if answer.status != 200 {
            unread.push(answer.text);
        }
        reads += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    holder.execute("ROLLBACK".into()).await;
    cancelling.join_all().await;
    assert!(unread.is_empty(), "{} of {reads} reads showed no state: {}", unread.len(), unread[0]);
    assert!(reads > 40, "one after the other, there were only {reads} reads");
    assert_eq!(at_rest(&running, &sale).await.live_orders, 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_read_their_orders_while_changes_wait_in_postgres() {
    buyers_read_their_orders_while_changes_wait(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_read_their_orders_while_changes_wait_in_mariadb() {
    buyers_read_their_orders_while_changes_wait(Database::Mariadb).await;
}

/// A row is locked that every cancellation needs, and more buyers cancel all the time than there are connections. An order
/// of another sale expires meanwhile, the order log gets that, and an operator reads the books.
#[tokio::test(flavor = "multi_thread")]
async fn maintenance_and_operators_go_on_while_buyers_wait_for_connections() {
    let mut world = World::new(Database::Postgres).await;
    world.set("database.connections=4").set("database.timeout_ms=2000").set("maintenance.every_ms=200");
    let running = world.running().await;
    let busy = sale(&format!("{}a", world.name), 30, 1);
    let terms = Terms { pay_within_s: Some(8), ..Terms::default() };
    let other = Sale { terms, ..sale(&world.name, 1, 1) };
    world.open_sale(&running.parts, &busy).await;
    world.open_sale(&running.parts, &other).await;
    let mut orders = Vec::new();
    for nth in 0..30 {
        let buyer = Buyer::of(&running, &format!("user{nth}"));
        let bought = buyer.buy(busy.id.as_str(), "k").await;
        orders.push((buyer, format!("/v1/sales/{}/orders/{}:cancel", busy.id, bought.order_id())));
    }
    let bought = Buyer::of(&running, "zoe").buy(other.id.as_str(), "k").await;
    assert_eq!(bought.status, 202, "{}", bought.text);
    at_rest(&running, &busy).await;

    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    holder.execute(format!("UPDATE items SET sold = sold + 0 WHERE sale_id = '{}'", busy.id)).await;
    let enough = CancellationToken::new();
    let mut flood = JoinSet::new();
    for (buyer, cancel) in orders {
        let enough = enough.clone();
        flood.spawn(async move {
            while !enough.is_cancelled() {
                let answer = buyer.post(&cancel, &[], "{}").await;
                // Once the row is free, the last ones are served.
                assert!(answer.status == 503 || enough.is_cancelled(), "{}", answer.text);
            }
        });
    }
    let mut session = Session::open(&world).await;
    let expired =
        format!("SELECT COUNT(*) FROM orders WHERE sale_id = '{}' AND status = 'expired'", other.id);
    until_one(&mut session, "the order of the other sale expires", &expired).await;
    let logged = "SELECT COUNT(*) FROM (SELECT 1) one WHERE NOT EXISTS (SELECT 1 FROM log_outbox)";
    until_one(&mut session, "the order log has it", logged).await;
    let operator = Buyer::operator(&running, OperatorRole::Viewer);
    let audit = operator.get(&format!("/v1/admin/sales/{}/audit", other.id)).await;
    assert_eq!(audit.status, 200, "{}", audit.text);
    let ready = operator.get("/readyz").await;
    assert_eq!(ready.json["dependencies"]["database"]["up"], true, "{}", ready.text);
    enough.cancel();
    holder.execute("ROLLBACK".into()).await;
    flood.join_all().await;
    running.stop().await;
}

/// Returns once a query counts one. Not through the product's connections, which are all in use.
async fn until_one(session: &mut Session, what: &str, query: &str) {
    let counts_one = async || (session.numbers(query.to_owned()).await == [1]).then_some(());
    until(what, Duration::from_secs(60), counts_one).await;
}
