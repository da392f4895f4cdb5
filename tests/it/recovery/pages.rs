//! Follows docs/recovery.md page by page: a server loses its data, and the page's own commands recover it.

use std::path::Path;
use std::time::Duration;

use doorbuster::domain::{OrderStatus, Sale, SaleState};
use doorbuster::process::{Role, Running};
use doorbuster::rehearsal::chaos::Proxy;
use doorbuster::rehearsal::servers::{Ending, Kind, Server};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use crate::documents::{commands, read, words};
use crate::support::{
    Backup, Buyer, Database, World, ask_redis, at_rest, behind_proxy, buy, everything_is_witnessed,
    private_redis, redis_second, request, roll_redis_back, run, sale, until,
};

const LONG: Duration = Duration::from_secs(60);

/// Runs the commands of a page in order and returns their output. Each must exit with its code from `codes`.
async fn follow_page(world: &World, title: &str, sale: &Sale, codes: &[i32]) -> String {
    let text = read("docs/recovery.md");
    let (_, page) = text.split_once(&format!("\n## {title}\n")).expect("the page");
    let page = page.split("\n## ").next().expect("a part");
    let commands = commands(page);
    assert_eq!(commands.len(), codes.len(), "{commands:?}");
    let mut output = String::new();
    for (command, code) in commands.iter().zip(codes) {
        let words: Vec<String> = words(command)
            .into_iter()
            .skip(1)
            .map(|word| if word == "drop" { sale.id.to_string() } else { word })
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (got, out, err) = run(Some(world), &words).await;
        output += &format!("$ {command}\n{out}{err}");
        assert_eq!(got, *code, "{output}");
    }
    // With --nocapture this shows the output to paste into the page.
    println!("{}", output.replace(sale.id.as_str(), "drop"));
    output
}

/// Sells the remaining units to a crowd. All units are sold, and no accepted order fails.
pub async fn sell_out(running: &Running, sale: &Sale) {
    // A front's cached view of a sale may be half a second old.
    until("the sale sells again", LONG, async || {
        let answer = Buyer::of(running, "first").buy(sale.id.as_str(), "k").await;
        (answer.status != 503).then_some(())
    })
    .await;
    let mut sold_out = 0;
    for user in 1_000..1_040 {
        let answer = Buyer::of(running, &format!("user{user}")).buy(sale.id.as_str(), "k").await;
        assert!(answer.status == 202 || answer.code() == "sold_out", "{}", answer.text);
        sold_out += u32::from(answer.status != 202);
    }
    assert!(sold_out > 0);
    let books = at_rest(running, sale).await;
    assert_eq!((books.items[0].live, books.items[0].left), (books.items[0].stock, 0));
    for row in running.parts.store.orders_after(&sale.id, None, 1_000).await.unwrap() {
        assert_ne!(row.status, OrderStatus::Failed, "{row:?}");
    }
}

pub fn address(url: &str) -> std::net::SocketAddr {
    let address = url.split(['/', '@']).find(|part| part.parse::<std::net::SocketAddr>().is_ok());
    address.expect("an address").parse().unwrap()
}

/// A private Redis behind a proxy, so that it can restart under the same address.
pub async fn private_redis_behind(world: &mut World, folder: &Path) -> (Server, Proxy) {
    let server = private_redis(world, folder).await;
    let proxy = behind_proxy(world, "redis.url").await;
    (server, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_was_wiped() {
    let mut world = World::new(Database::Sqlite).await;
    // The sweep would publish the orders later. Here an operator does not wait for it.
    world.set("sweep.overtaken_after_ms=600000");
    let folder = tempfile::tempdir().unwrap();
    let broker = Server::start(Kind::Rabbitmq, folder.path()).await.unwrap();
    world.set(&format!("queue.url={}", broker.url));
    let proxy = behind_proxy(&mut world, "queue.url").await;
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&front.parts, &sale).await;
    buy(&front, &sale, 0..12).await;
    broker.stop(Ending::AtOnce).await;
    std::fs::remove_dir_all(folder.path().join("rabbitmq")).unwrap();
    let broker = Server::start(Kind::Rabbitmq, folder.path()).await.unwrap();
    proxy.point_to(vec![address(&broker.url)]);
    front.publisher_is_up(LONG).await.unwrap();
    let said = follow_page(&world, "The broker was wiped", &sale, &[0, 0, 0]).await;
    assert!(said.contains("12 inserted"), "{said}");
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    assert_eq!(at_rest(&front, &sale).await.live_orders, 12);
    sell_out(&front, &sale).await;
    // A log that begins after the sale did says so.
    let mut database = sqlx::SqliteConnection::connect(&world.config().database.url).await.unwrap();
    database.execute("UPDATE sales SET created_at_ms = created_at_ms - 3600000").await.unwrap();
    let (code, out, err) = run(Some(&world), &["replay", "plan", "log", "--since", "30d"]).await;
    assert!(code == 3 && out.contains("the log begins at"), "{out}{err}");
    worker.stop().await;
    front.stop().await;
    broker.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_lost_everything() {
    let mut world = World::new(Database::Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let (redis, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let front = world.running_as(Role::Front).await;
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&front.parts, &sale).await;
    buy(&front, &sale, 0..12).await;
    at_rest(&front, &sale).await;
    worker.stop().await;
    // These orders wait in the queue.
    let waiting = buy(&front, &sale, 12..16).await;
    redis.stop(Ending::AtOnce).await;
    std::fs::remove_dir_all(folder.path().join("redis")).unwrap();
    let redis = Server::start(Kind::Redis, folder.path()).await.unwrap();
    proxy.point_to(vec![address(&redis.url)]);
    until("the front refuses to sell", LONG, async || {
        let answer = Buyer::of(&front, "eve").buy(sale.id.as_str(), "k").await;
        assert_ne!(answer.status, 202, "{}", answer.text);
        // Only a sale that must be rebuilt has buyers wait for five seconds.
        let page = request(front.buyers.unwrap(), "GET", &format!("/v1/sales/{}", sale.id), &[], b"").await;
        let is_lost =
            page.status == 503 && page.headers.get("retry-after").is_some_and(|seconds| seconds == "5");
        (answer.code() == "gate_unavailable" && is_lost).then_some(())
    })
    .await;
    for (command, exit, says) in [
        (&["sale", "show", sale.id.as_str()][..], 0, "has lost this sale"),
        (&["sale", "list"], 0, "LOST"),
        (&["doctor"], 3, "redis has lost"),
    ] {
        let (code, out, err) = run(Some(&world), command).await;
        assert!(code == exit && out.contains(says), "{command:?}: {code} {out}{err}");
        assert!(out.contains("doorbuster rebuild --sale") || command == ["sale", "list"], "{out}");
    }
    // An order that was accepted is not said to be missing, whether it has a row or waits in the queue.
    for user in ["user0", "user12"] {
        let mine = Buyer::of(&front, user).get(&format!("/v1/sales/{}/orders/mine", sale.id)).await;
        assert_eq!((mine.status, mine.code()), (503, "status_unavailable"), "{user}: {}", mine.text);
    }
    let waits =
        Buyer::of(&front, "user12").get(&format!("/v1/sales/{}/orders/{}", sale.id, waiting[0])).await;
    assert_eq!((waits.status, waits.code()), (503, "status_unavailable"), "{}", waits.text);
    let path = format!("/v1/sales/{}/orders/{}:cancel", sale.id, waiting[0]);
    let cancelled = Buyer::of(&front, "user12").post(&path, &[], "").await;
    assert_eq!((cancelled.status, cancelled.code()), (503, "status_unavailable"), "{}", cancelled.text);
    let path = format!("/v1/admin/sales/{}/orders/{}", sale.id, waiting[0]);
    let seen = Buyer::operator(&front, doorbuster::front::Role::Viewer).get(&path).await;
    assert_eq!((seen.status, seen.code()), (503, "status_unavailable"), "{}", seen.text);
    let (code, out, err) =
        run(Some(&world), &["order", "show", sale.id.as_str(), &waiting[0].to_string()]).await;
    assert!(code == 1 && err.contains("being put right"), "{out}{err}");
    let said = follow_page(&world, "Redis lost everything", &sale, &[4, 0, 0]).await;
    assert!(said.contains("4 orders in flight"), "{said}");
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    sell_out(&front, &sale).await;
    worker.stop().await;
    front.stop().await;
    redis.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_came_back_in_time() {
    let mut world = World::new(Database::Sqlite).await;
    // Otherwise a front might be faster than the page's commands.
    world.set("gate.rebuild=manual");
    let folder = tempfile::tempdir().unwrap();
    let redis = private_redis(&mut world, folder.path()).await;
    // No worker runs: the orders that Redis is about to lose have no rows.
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&front.parts, &sale).await;
    buy(&front, &sale, 0..3).await;
    let second = redis_second(&front.parts.gate).await;
    let forgotten = buy(&front, &sale, 3..6).await;
    front.stop().await;
    redis.stop(Ending::AtOnce).await;
    roll_redis_back(folder.path(), second);
    let redis = private_redis(&mut world, folder.path()).await;

    let front = world.running_as(Role::Front).await;
    let eve = Buyer::of(&front, "eve").buy(sale.id.as_str(), "k").await;
    assert_eq!((eve.status, eve.code()), (503, "sale_paused"), "{}", eve.text);
    let gate = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!(
        (gate.state, gate.items[0].left, gate.waiting),
        (SaleState::Frozen, 6, 3),
        "Redis has lost three orders"
    );
    // It does not know the order any more, and the database does not know it yet.
    let path = format!("/v1/sales/{}/orders/{}", sale.id, forgotten[0]);
    let seen = Buyer::of(&front, "user3").get(&path).await;
    assert_eq!((seen.status, seen.code()), (503, "status_unavailable"), "{}", seen.text);
    let said = follow_page(&world, "Redis came back in time", &sale, &[0, 0, 0]).await;
    assert!(said.contains("frozen") && said.contains("6 orders in flight"), "{said}");
    let worker = Running::start(&world.config(), Role::Worker).await.unwrap();
    sell_out(&front, &sale).await;
    worker.stop().await;
    front.stop().await;
    redis.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_is_a_backup() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let mut sale = sale(&world.name, 20, 1);
    sale.terms.pay_within_s = Some(3_600);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..5).await;
    at_rest(&running, &sale).await;
    let backup = Backup::of(&world);
    backup.make().await;

    buy(&running, &sale, 5..12).await;
    at_rest(&running, &sale).await;
    let orders = doorbuster::orders::Orders::new(
        running.parts.gate.clone(),
        running.parts.store.clone(),
        running.parts.leases.clone(),
    );
    let request = doorbuster::domain::ActRequest::by("operator ada");
    let rows = running.parts.store.orders_after(&sale.id, None, 100).await.unwrap();
    for (nth, row) in rows.iter().enumerate() {
        let act = if nth % 4 == 0 { doorbuster::domain::Act::Cancel } else { doorbuster::domain::Act::Pay };
        orders.act(&sale.id, row.order.id, act, &request).await.unwrap();
    }
    let books = at_rest(&running, &sale).await;
    let lost = running.parts.store.orders_after(&sale.id, None, 100).await.unwrap();
    everything_is_witnessed(&running, &sale).await;

    // Nothing is stopped.
    backup.restore().await;
    let said = follow_page(&world, "The database is a backup", &sale, &[0, 4, 0, 0, 0]).await;
    assert!(said.contains("7 inserted") && said.contains("5 brought up to date"), "{said}");
    let restored = at_rest(&running, &sale).await;
    assert_eq!(
        (restored.items[0].live, restored.items[0].left, restored.live_orders),
        (books.items[0].live, books.items[0].left, books.live_orders)
    );
    let states = |rows: &[doorbuster::store::OrderRow]| -> Vec<_> {
        rows.iter().map(|row| (row.order.clone(), row.status, row.version)).collect()
    };
    let rows = running.parts.store.orders_after(&sale.id, None, 100).await.unwrap();
    assert_eq!(states(&rows), states(&lost));
    sell_out(&running, &sale).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_dead_letters() {
    let world = World::new(Database::Postgres).await;
    let running = world.running().await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&running.parts, &sale).await;
    let execute = async |statement: String| {
        let mut database = sqlx::PgConnection::connect(&world.config().database.url).await.unwrap();
        database.execute(AssertSqlSafe(statement)).await.unwrap();
    };
    // A bad release: the database refuses every order of some users.
    let bad = "CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               IF NEW.user_id LIKE 'user%' THEN RAISE EXCEPTION 'a bad release'; END IF; RETURN NEW; END $$";
    execute(bad.into()).await;
    execute("CREATE TRIGGER bad BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION bad()".into()).await;
    buy(&running, &sale, 0..4).await;
    let dead_letters = running.parts.dead_letters.clone().expect("connected");
    let all_dead = async || {
        until("all are dead letters", LONG, async || {
            (dead_letters.list(100).await.ok()?.len() == 4).then_some(())
        })
        .await;
    };
    all_dead().await;
    // While the cause persists they come back, and replays stop at their limit.
    let again = ["replay", "run", "dead-letters", "--yes", "--max-replays", "1"];
    let (code, out, err) = run(Some(&world), &again).await;
    assert!(code == 0 && out.contains("4 inserted"), "{out}{err}");
    all_dead().await;
    let (code, out, err) = run(Some(&world), &again).await;
    assert!(code == 3 && out.contains("4 came back too often"), "{out}{err}");
    assert_eq!(dead_letters.list(100).await.unwrap().len(), 4);

    execute("DROP TRIGGER bad ON orders".into()).await;
    let said = follow_page(&world, "A flood of dead letters", &sale, &[0, 0, 0, 0]).await;
    assert!(said.contains("4 inserted") && said.contains("no dead letters"), "{said}");
    assert_eq!(at_rest(&running, &sale).await.live_orders, 4);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_stock() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 12, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..4).await;
    at_rest(&running, &sale).await;
    let by_hand = format!("HSET {}:{{{}}}:items unit 500", world.name, sale.id);
    let _: i64 = ask_redis(&crate::support::servers().redis, &by_hand).await;
    let said = follow_page(&world, "Wrong stock", &sale, &[0, 4, 0, 0]).await;
    assert!(said.contains("missing -492") && said.contains("8 left now"), "{said}");
    sell_out(&running, &sale).await;
    running.stop().await;
}
