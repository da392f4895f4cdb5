//! One stall is nobody else's: a locked row, a transaction that nobody ends, a way to the database that goes dead.

use std::time::{Duration, Instant};

use doorbuster::domain::Sale;
use doorbuster::lease::LeaseOptions;
use doorbuster::process::{Role, Running};
use doorbuster::store::Recorded;
use sqlx::{Connection as _, Executor as _, MySqlConnection, PgConnection, Row as _};

use crate::recovery::log_reach::gauge;
use crate::seams::queue::connected;
use crate::seams::store::{claim, orders};
use crate::support::{Buyer, Database, Doorbuster, World, at_rest, buy, order, request, sale, until};

const LONG: Duration = Duration::from_secs(60);

/// How long the row is locked, and how often somebody buys meanwhile.
const LOCKED: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_millis(40);

/// A session beside those of the product.
pub enum Session {
    Postgres(PgConnection),
    Mariadb(MySqlConnection),
}

impl Session {
    pub async fn open(world: &World) -> Self {
        let url = world.config().database.url;
        match url.starts_with("mysql") {
            true => Self::Mariadb(MySqlConnection::connect(&url).await.unwrap()),
            false => Self::Postgres(PgConnection::connect(&url).await.unwrap()),
        }
    }

    pub async fn execute(&mut self, statement: String) {
        match self {
            Self::Postgres(session) => drop(session.execute(sqlx::AssertSqlSafe(statement)).await.unwrap()),
            Self::Mariadb(session) => drop(session.execute(sqlx::AssertSqlSafe(statement)).await.unwrap()),
        }
    }

    /// The numbers in the first column.
    pub async fn numbers(&mut self, query: String) -> Vec<i64> {
        let query = sqlx::AssertSqlSafe(query);
        match self {
            Self::Postgres(session) => {
                session.fetch_all(query).await.unwrap().iter().map(|row| row.get(0)).collect()
            }
            Self::Mariadb(session) => {
                session.fetch_all(query).await.unwrap().iter().map(|row| row.get(0)).collect()
            }
        }
    }
}

/// From when an order was accepted to when its row was written, for each order of a sale.
fn persisted_after(sale: &Sale) -> String {
    let sale = sale.id.as_str();
    format!("SELECT recorded_at_ms - accepted_at_ms FROM orders WHERE sale_id = '{sale}' ORDER BY 1")
}

/// A session of somebody else holds the item row of a busy sale. The deliveries of that sale alone are more than the
/// broker gives the worker at a time.
async fn a_locked_row_holds_up_its_own_sale_alone(database: Database) {
    let mut world = World::new(database).await;
    world.set("worker.batch=20").set("worker.prefetch=20");
    let running = world.running_as(Role::Front).await;
    let worker = Doorbuster::start(&world, "worker").await;
    let (locked, free) = (sale(&format!("{}a", world.name), 5_000, 1), sale(&world.name, 5_000, 1));
    world.open_sale(&running.parts, &locked).await;
    world.open_sale(&running.parts, &free).await;
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    let hold = format!("UPDATE items SET sold = sold + 0 WHERE sale_id = '{}'", locked.id.as_str());
    holder.execute(hold).await;

    let begun = Instant::now();
    let mut clicks = tokio::time::interval(EVERY);
    let mut bought = 0;
    while begun.elapsed() < LOCKED {
        for sale in [&locked, &free] {
            let buyer = Buyer::of(&running, &format!("user{bought}"));
            let answer = buyer.buy(sale.id.as_str(), "k").await;
            assert_eq!(answer.status, 202, "{}", answer.text);
        }
        bought += 1;
        clicks.tick().await;
    }
    until("the free sale has all its rows", LONG, async || {
        (running.parts.store.totals(&free.id).await.unwrap().orders == bought).then_some(())
    })
    .await;
    assert_eq!(running.parts.store.totals(&locked.id).await.unwrap().orders, 0, "its row is locked");
    let stalled = format!("doorbuster_worker_sale_stalled{{sale=\"{}\"}}", locked.id.as_str());
    assert_eq!(worker.metric(&stalled).await, 1.0);
    for operations in [running.operations, worker.operations] {
        let ready = request(operations, "GET", "/readyz", &[], b"").await;
        assert_eq!(ready.status, 200, "{}", ready.text);
    }
    let waits = Session::open(&world).await.numbers(persisted_after(&free)).await;
    let p99 = waits[waits.len() * 99 / 100];
    println!("from accepted to row: p99 {p99} ms of {} orders, longest {:?}", waits.len(), waits.last());
    assert!(p99 < 2_000, "p99 {p99} ms of {} orders, longest {:?}", waits.len(), waits.last());
    assert_eq!(worker.metric("doorbuster_worker_redeliveries_total").await, 0.0, "none was given back");

    holder.execute("ROLLBACK".into()).await;
    assert_eq!(at_rest(&running, &locked).await.live_orders, bought);
    assert_eq!(worker.metric(&stalled).await, 0.0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_holds_up_its_own_sale_alone_in_postgres() {
    a_locked_row_holds_up_its_own_sale_alone(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_holds_up_its_own_sale_alone_in_mariadb() {
    a_locked_row_holds_up_its_own_sale_alone(Database::Mariadb).await;
}

/// A message with orders of two sales. The order of the free sale waits for its user's lease, so the message is in lanes all
/// the time, and not with what is set aside, when the other sale goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_was_set_aside_while_its_message_was_at_work_goes_on_with_its_sale() {
    let world = World::new(Database::Postgres).await;
    // Without a front nothing publishes the order again.
    let worker = world.running_as(Role::Worker).await;
    let (locked, free) = (sale(&format!("{}a", world.name), 9, 1), sale(&world.name, 9, 1));
    world.open_sale(&worker.parts, &locked).await;
    world.open_sale(&worker.parts, &free).await;
    let leases = &worker.parts.leases;
    let lasting = LeaseOptions::lasting(LONG).max_hold(LONG);
    let lease = leases.acquire(free.id.as_str(), ["bob"], lasting, LONG).await.unwrap().expect("free");
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    let hold = format!("UPDATE items SET sold = sold + 0 WHERE sale_id = '{}'", locked.id.as_str());
    holder.execute(hold).await;
    let publisher = connected(&world).await;
    publisher.publish(&[order(&locked.id, "ada", 1), order(&free.id, "bob", 1)]).await.unwrap();
    let stalled = format!("doorbuster_worker_sale_stalled{{sale=\"{}\"}}", locked.id.as_str());
    until("the sale is set aside", LONG, async || {
        (gauge(&worker, &stalled).await == Some(1.0)).then_some(())
    })
    .await;
    holder.execute("ROLLBACK".into()).await;
    until("the sale goes on", LONG, async || (gauge(&worker, &stalled).await == Some(0.0)).then_some(()))
        .await;
    lease.release().await.unwrap();
    for sale in [&free, &locked] {
        until("the order has its row", Duration::from_secs(20), async || {
            (worker.parts.store.totals(&sale.id).await.unwrap().orders == 1).then_some(())
        })
        .await;
    }
    worker.stop().await;
}

/// A worker stops in the middle of its transaction, as if its host were gone: the database sees no end of it.
async fn a_transaction_that_nobody_ends_is_ended_by_the_server(database: Database) {
    let mut world = World::new(database).await;
    world.set("database.timeout_ms=2000");
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&front.parts, &sale).await;
    let gone = Doorbuster::start_with(&world, "worker", Some("commit.before=hang")).await;
    assert_eq!(Buyer::of(&front, "ada").buy(sale.id.as_str(), "k").await.status, 202);
    until("it is in its transaction", LONG, async || gone.has_logged("failure point reached").then_some(()))
        .await;
    let pid = gone.child.id().expect("it runs").to_string();
    assert!(std::process::Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let began = Instant::now();
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    until("it consumes", LONG, async || {
        let ready = request(worker.operations, "GET", "/readyz", &[], b"").await;
        (ready.json["dependencies"]["broker"]["up"] == true).then_some(())
    })
    .await;
    // The broker lends half of these orders to the worker that is gone.
    buy(&front, &sale, 0..8).await;
    until("others go on", LONG, async || {
        (front.parts.store.totals(&sale.id).await.unwrap().orders >= 3).then_some(())
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(gone);
    assert_eq!(at_rest(&front, &sale).await.live_orders, 9);
    worker.stop().await;
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_nobody_ends_is_ended_by_postgres() {
    a_transaction_that_nobody_ends_is_ended_by_the_server(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_nobody_ends_is_ended_by_mariadb() {
    a_transaction_that_nobody_ends_is_ended_by_the_server(Database::Mariadb).await;
}

/// The broker is killed while a worker acknowledges: lapin then may never say what became of the ack.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_that_never_ends_keeps_no_users_lease() {
    let world = World::new(Database::Postgres).await;
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 9, 2);
    world.open_sale(&front.parts, &sale).await;
    let worker = Doorbuster::start_with(&world, "worker", Some("ack.during=hang")).await;
    let ada = Buyer::of(&front, "ada");
    for (nth, key) in ["first", "second"].into_iter().enumerate() {
        assert_eq!(ada.buy(sale.id.as_str(), key).await.status, 202);
        until("the order has its row", Duration::from_secs(20), async || {
            (front.parts.store.totals(&sale.id).await.unwrap().orders == nth as u64 + 1).then_some(())
        })
        .await;
    }
    assert!(worker.has_logged("failure point reached"));
    drop(worker);
    front.stop().await;
}

/// Stops or resumes the processes that serve the connections of this world's pool.
fn signal(processes: &[i64], signal: &str) {
    let pids: Vec<String> = processes.iter().map(ToString::to_string).collect();
    assert!(std::process::Command::new("kill").arg(signal).args(pids).status().unwrap().success());
}

/// The connections of the pool stay open and answer nothing, as if the way to the server were gone. New ones work.
#[tokio::test(flavor = "multi_thread")]
async fn dead_connections_to_the_database_are_left_within_seconds() {
    let mut world = World::new(Database::Postgres).await;
    world.set("database.connections=4").set("database.timeout_ms=5000");
    let store = world.parts().await.store;
    // Each holds a connection of its own.
    let reads = (0..4).map(|_| store.check());
    futures_util::future::try_join_all(reads).await.unwrap();
    let mut watcher = Session::open(&world).await;
    let served = "SELECT pid::int8 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let dead = watcher.numbers(served.into()).await;
    assert!(dead.len() >= 4, "{dead:?}");
    // One that was in use within the last 100 ms is used again without a test.
    let rested = format!("{served} AND clock_timestamp() - state_change > interval '150 ms'");
    until("all of them have rested", LONG, async || {
        (watcher.numbers(rested.clone()).await.len() == dead.len()).then_some(())
    })
    .await;
    signal(&dead, "-STOP");
    let began = Instant::now();
    let answered = store.check().await;
    let took = began.elapsed();
    signal(&dead, "-CONT");
    // Each query takes the connection that has been idle for longest. Only the first dead one may cost a second.
    assert!(answered.is_ok() && took < Duration::from_secs(3), "{took:?} {answered:?}");
    until("they are closed", LONG, async || {
        let served = watcher.numbers(served.into()).await;
        (!dead.iter().any(|pid| served.contains(pid))).then_some(())
    })
    .await;
}

/// A query that is given up while its server says nothing must not keep its connection, or a few of them would use up
/// the pool.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_was_given_up_does_not_keep_its_connection() {
    let mut world = World::new(Database::Postgres).await;
    world.set("database.connections=1").set("database.timeout_ms=3000");
    let parts = world.parts().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&parts, &sale).await;
    let mut holder = Session::open(&world).await;
    holder.execute("BEGIN".into()).await;
    holder.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE".into()).await;
    let (store, id) = (parts.store.clone(), sale.id.clone());
    let read = tokio::spawn(async move { store.totals(&id).await.map(drop) });
    let mut watcher = Session::open(&world).await;
    let waiting = "SELECT pid::int8 FROM pg_locks JOIN pg_class ON pg_class.oid = relation \
         WHERE relname = 'orders' AND NOT granted";
    let silent = until("the query waits", LONG, async || {
        Some(watcher.numbers(waiting.into()).await).filter(|waiting| waiting.len() == 1)
    })
    .await;
    signal(&silent, "-STOP");
    read.abort();
    let began = Instant::now();
    let answered = parts.store.sales().await;
    let took = began.elapsed();
    signal(&silent, "-CONT");
    assert!(answered.is_ok(), "{took:?} {answered:?}");
    // Nor does the server go on with it.
    until("no query waits for the table", Duration::from_secs(10), async || {
        watcher.numbers(waiting.into()).await.is_empty().then_some(())
    })
    .await;
    holder.execute("ROLLBACK".into()).await;
}

/// A sale whose stock refuses orders is halved by itself; the orders of the others stay in one transaction each.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_refuses_orders_splits_up_no_other() {
    let world = World::new(Database::Postgres).await;
    let store = world.parts().await.store;
    let sales = [sale("first", 50, 1), sale("refuses", 3, 1), sale("third", 50, 1)];
    let mut claims = Vec::new();
    for sale in &sales {
        store.create_sale(sale).await.unwrap();
        claims.extend(orders(sale, 0..20).iter().map(|order| claim(order, 1)));
    }
    let recorded = store.record(&claims, &|| true).await.unwrap();
    let confirmed = recorded.iter().filter(|recorded| **recorded == Recorded::Confirmed).count();
    assert_eq!((recorded.len(), confirmed), (60, 43), "{recorded:?}");
    let mut session = Session::open(&world).await;
    for (sale, transactions) in sales.iter().zip([1, 3, 1]) {
        let query = format!(
            "SELECT count(DISTINCT attempt_id) FROM orders WHERE status = 'confirmed' AND sale_id = '{}'",
            sale.id.as_str()
        );
        let found = session.numbers(query).await[0];
        assert!(found <= transactions, "{}: {found} transactions", sale.id);
    }
}

/// Two sessions that take turns: each waits for the row, changes it, and holds it until the other one waits.
async fn take_turns(world: &World, sale: &Sale, ends: Instant) {
    let url = world.config().database.url;
    let turns = (0..2).map(|_| async {
        let mut session = MySqlConnection::connect(&url).await.unwrap();
        let id = sale.id.as_str();
        let mut commits = 0;
        while Instant::now() < ends {
            let update = format!("UPDATE items SET sold = sold + 1 WHERE sale_id = '{id}'");
            session.execute("BEGIN").await.unwrap();
            session.execute(sqlx::AssertSqlSafe(update)).await.unwrap();
            tokio::time::sleep(HELD).await;
            session.execute("COMMIT").await.unwrap();
            commits += 1;
        }
        commits
    });
    let commits = futures_util::future::join_all(turns).await;
    assert!(commits.iter().all(|commits| *commits > 10), "nobody took turns: {commits:?}");
}

/// How long each turn holds the row: several looks of a batch fall into a change from one holder to the next.
const HELD: Duration = Duration::from_millis(60);

/// The item is locked at every look, but by other sessions that go on. Its sale is busy and not stalled.
#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_writers_take_turns_at_is_not_set_aside_in_mariadb() {
    let world = World::new(Database::Mariadb).await;
    let store = world.parts().await.store;
    let (busy, quiet) = (sale("busy", 50_000, 1), sale("quiet", 50_000, 1));
    for sale in [&busy, &quiet] {
        store.create_sale(sale).await.unwrap();
    }
    let turns = take_turns(&world, &busy, Instant::now() + Duration::from_secs(4));
    let batches = async {
        tokio::time::sleep(HELD).await;
        for nth in 0..5 {
            let claims: Vec<_> = [&busy, &quiet]
                .iter()
                .flat_map(|sale| orders(sale, nth..nth + 1))
                .map(|order| claim(&order, 1))
                .collect();
            let recorded = store.record(&claims, &|| true).await.unwrap();
            assert_eq!(recorded, vec![Recorded::Confirmed; 2], "batch {nth}");
        }
    };
    tokio::join!(turns, batches);
}
