//! Bad days during a recovery: a log that begins too late, entries that cannot be read, and full servers. Each
//! ends with a clear sentence and an exit code, destroys nothing, and can be repeated.

use std::time::Duration;

use doorbuster::domain::{Act, OrderStatus, SaleState};
use doorbuster::process::Role;
use doorbuster::rehearsal::servers::{Ending, Kind, Server};
use lapin::options::BasicPublishOptions;
use sqlx::{Connection as _, Executor as _};

use super::log_reach::{delete_log, gauge};
use super::repair::{act, forget};
use crate::seams::queue::channel;
use crate::support::{
    Backup, Database, World, ask_redis, at_rest, buy, everything_is_witnessed, private_redis, run, run_with,
    sale, until,
};

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_begins_later_than_the_backup_leaves_the_database_behind() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100").set("worker.hold_ms=1000");
    let running = world.running().await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    everything_is_witnessed(&running, &sale).await;
    until("the position in the log is recorded", LONG, async || {
        running.parts.store.replay_from().await.ok()?.map(drop)
    })
    .await;
    let database = Backup::of(&world);
    database.make().await;
    // The backup was made an hour ago.
    database.execute("UPDATE sales SET created_at_ms = created_at_ms - 7200000").await;
    database.execute("UPDATE log_position SET replay_from_ms = replay_from_ms - 3600000").await;
    buy(&running, &sale, 3..6).await;
    at_rest(&running, &sale).await;
    everything_is_witnessed(&running, &sale).await;
    delete_log(&world).await;
    database.restore().await;
    until("the loss of the database is noticed", LONG, async || running.parts.store.behind()).await;
    // The log begins with an order that the database will lack, too.
    let answer = until("the log takes orders again", LONG, async || {
        let user = format!("late{}", doorbuster::domain::OrderId::generate());
        let answer = crate::support::Buyer::of(&running, &user).buy(sale.id.as_str(), "k").await;
        (answer.json["durability"] == "broker").then_some(answer)
    })
    .await;
    assert_eq!(answer.status, 202);

    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 3 && out.contains("the database is behind"), "{code} {out}{err}");
    // On standard error, and before anything was written.
    assert!(err.contains("does not reach back to the database's position"), "{err}");
    assert!(err.contains("Redis still has"), "{err}");
    assert!(running.parts.store.behind().is_some());
    let (code, out, _) = run(Some(&world), &["audit", "--sale", sale.id.as_str()]).await;
    assert!(code == 4 && out.contains("has lost commits"), "{code} {out}");
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--accept-loss", "--yes"]).await;
    // 4 if nothing moves: the gate still holds what the database has lost.
    assert!([3, 4].contains(&code) && out.contains("accepted as lost"), "{code} {out}{err}");
    until("everything goes on", LONG, async || running.parts.store.behind().is_none().then_some(())).await;
    // What the backup has is as it was, and the orders since then are still the gate's: a person decides about them.
    let (code, out, err) =
        run(Some(&world), &["audit", "--sale", sale.id.as_str(), "--older-than", "0"]).await;
    assert!(code == 4 && out.matches("unproven ").count() == 3, "{code} {out}{err}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_cannot_be_read_is_an_exit_code_of_every_command() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    running.stop().await;
    let log = format!("{}.log", world.name);
    let confirmed = channel(&world)
        .await
        .basic_publish(
            "".into(),
            log.as_str().into(),
            BasicPublishOptions::default(),
            b"{\"v\":99}",
            Default::default(),
        )
        .await;
    confirmed.unwrap().await.unwrap();
    let sale = sale.id.as_str();
    for json in [false, true] {
        for command in [
            &["replay", "plan", "log"][..],
            &["replay", "run", "log", "--yes"],
            &["rebuild", "--sale", sale, "--yes"],
        ] {
            let arguments = [command, if json { &["--output", "json"][..] } else { &[] }].concat();
            let (code, out, err) = run(Some(&world), &arguments).await;
            assert_eq!(code, 3, "{arguments:?}: {out}{err}");
            assert!(!json || serde_json::from_str::<serde_json::Value>(&out).is_ok(), "{out}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_or_database_ends_a_recovery_that_goes_on_once_there_is_room() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100");
    let folder = tempfile::tempdir().unwrap();
    let redis = private_redis(&mut world, folder.path()).await;
    let running = world.running().await;
    let sale = sale(&world.name, 2_000, 1);
    world.open_sale(&running.parts, &sale).await;
    let orders = buy(&running, &sale, 0..20).await;
    at_rest(&running, &sale).await;
    act(&running.parts, &sale, orders[0], Act::Pay).await;
    everything_is_witnessed(&running, &sale).await;
    running.stop().await;
    let rebuild = ["rebuild", "--sale", sale.id.as_str(), "--yes"];

    // Redis has no room for what a rebuild stages.
    let _: String = ask_redis(&redis.url, "CONFIG SET maxmemory 1").await;
    let (code, out, err) = run(Some(&world), &rebuild).await;
    assert!(code == 1 && err.contains("maxmemory"), "{code} {out}{err}");
    let _: String = ask_redis(&redis.url, "CONFIG SET maxmemory 0").await;
    let (code, out, err) = run(Some(&world), &rebuild).await;
    assert!(code == 0 && out.contains("is open again"), "{code} {out}{err}");

    // The database has no room for a row.
    let database = Backup::of(&world);
    for statement in [
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN RAISE EXCEPTION ''could not extend file: No space left on device'' USING ERRCODE = ''53100''; END'",
        "DELETE FROM orders WHERE id IN (SELECT id FROM orders ORDER BY id DESC LIMIT 5)",
        "UPDATE items SET sold = sold - 5",
        "DELETE FROM user_units WHERE user_id NOT IN (SELECT user_id FROM orders)",
        "CREATE TRIGGER full_disk BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION full_disk()",
    ] {
        database.execute_in_place(statement).await;
    }
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(
        code == 1 && err.contains("No space left") && err.contains("resume it with"),
        "{code} {out}{err}"
    );
    database.execute_in_place("DROP TRIGGER full_disk ON orders").await;
    let resume = err.split("resume it with: doorbuster ").nth(1).expect("a command").trim();
    let (code, out, err) = run(Some(&world), &resume.split_whitespace().collect::<Vec<_>>()).await;
    assert!(code == 0 && out.contains("5 inserted"), "{code} {out}{err}");
    let running = doorbuster::process::Running::start(&world.config(), Role::Both).await.unwrap();
    assert_eq!(at_rest(&running, &sale).await.live_orders, 20);
    let paid = running.parts.store.order(orders[0]).await.unwrap().expect("a row");
    assert_eq!(paid.status, OrderStatus::Paid);
    running.stop().await;
    redis.stop(Ending::AtOnce).await;
}

/// With its disk full, RabbitMQ takes no message from anybody, and so not the mark of the log's end.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_broker_ends_a_recovery_that_goes_on_once_there_is_room() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("queue.timeout_ms=1000").set("gate.rebuild=manual").set("sweep.overtaken_after_ms=1000");
    let folder = tempfile::tempdir().unwrap();
    let broker = Server::start(Kind::Rabbitmq, folder.path()).await.unwrap();
    world.set(&format!("queue.url={}", broker.url));
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&front.parts, &sale).await;
    buy(&front, &sale, 0..5).await;
    broker.control(&["set_disk_free_limit", "1000000000000000"]).await.unwrap();
    // Buyers are served all the same.
    until("orders stay in the outbox", LONG, async || {
        let user = format!("late{}", doorbuster::domain::OrderId::generate());
        let answer = crate::support::Buyer::of(&front, &user).buy(sale.id.as_str(), "k").await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        (answer.json["durability"] == "outbox").then_some(())
    })
    .await;
    let rebuild = ["rebuild", "--sale", sale.id.as_str(), "--yes"];
    let (code, _, err) = run(Some(&world), &rebuild).await;
    assert!(code == 1 && err.contains("the broker"), "{code} {err}");
    let gate = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!(gate.state, SaleState::Open);
    let (code, _, err) = run(Some(&world), &["replay", "run", "log", "--since", "1h", "--yes"]).await;
    assert!(code == 1 && err.contains("resume it with"), "{code} {err}");
    broker.control(&["set_disk_free_limit", "50MB"]).await.unwrap();
    let resume = err.split("resume it with: doorbuster ").nth(1).expect("a command").trim();
    let (code, out, err) = run(Some(&world), &resume.split_whitespace().collect::<Vec<_>>()).await;
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = run(Some(&world), &rebuild).await;
    assert!(code == 0 && out.contains("is open again"), "{code} {out}{err}");
    let worker = doorbuster::process::Running::start(&world.config(), Role::Worker).await.unwrap();
    let gate = front.parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    let books = at_rest(&front, &sale).await;
    assert_eq!(books.live_orders as i64, 30 - gate.items[0].left, "{books:?}");
    worker.stop().await;
    front.stop().await;
    broker.stop(Ending::AtOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_sale_that_redis_lost_alarms_and_can_be_rebuilt() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=100").set("audit.every_s=1").set("gate.rebuild=behind");
    let running = world.running().await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    let (code, _, err) = run(Some(&world), &["sale", "close", sale.id.as_str()]).await;
    assert_eq!(code, 0, "{err}");
    forget(&world, &sale).await;
    until("the loss is an alarm", LONG, async || {
        (gauge(&running, "doorbuster_audit_sales_to_rebuild").await == Some(1.0)).then_some(())
    })
    .await;
    let (code, out, err) = run(Some(&world), &["rebuild", "--sale", sale.id.as_str(), "--yes"]).await;
    assert!(code == 0 && out.contains("is closed again"), "{code} {out}{err}");
    until("the alarm ends", LONG, async || {
        (gauge(&running, "doorbuster_audit_sales_to_rebuild").await == Some(0.0)).then_some(())
    })
    .await;
    // A look that fails is not silence.
    use sqlx::{Connection as _, Executor as _};
    let mut database = sqlx::SqliteConnection::connect(&world.config().database.url).await.unwrap();
    let unread = "doorbuster_audit_sales_unjudged{reason=\"unread\"}";
    database.execute("UPDATE sales SET state = 'unknown'").await.unwrap();
    until("books that cannot be read are counted", LONG, async || {
        (gauge(&running, unread).await == Some(1.0)).then_some(())
    })
    .await;
    database.execute("UPDATE sales SET state = 'closed'").await.unwrap();
    until("they are read again", LONG, async || (gauge(&running, unread).await == Some(0.0)).then_some(()))
        .await;
    running.stop().await;
}

/// Somebody holds a lock. What the rebuild writes first is that it was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_cannot_write_to_the_database_freezes_nothing() {
    let mut world = World::new(Database::Postgres).await;
    world.set("gate.rebuild=manual");
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    running.stop().await;
    let (parts, url) = (world.parts().await, world.config().database.url);
    let state = async || parts.gate.describe(&sale.id).await.unwrap().expect("loaded").state;
    let rebuild = ["rebuild", "--sale", sale.id.as_str(), "--yes"];
    let mut hasty = World::with(world.overrides.clone());
    hasty.set("database.timeout_ms=1000");
    for table in ["sale_acts", "sales"] {
        let mut holder = sqlx::PgConnection::connect(&url).await.unwrap();
        let lock = sqlx::AssertSqlSafe(format!("BEGIN; LOCK TABLE {table} IN EXCLUSIVE MODE"));
        holder.execute(lock).await.unwrap();
        let (code, out, err) = run(Some(&hasty), &rebuild).await;
        assert!(code == 1 && !err.contains("frozen"), "{table}: {out}{err}");
        assert_eq!(state().await, SaleState::Open, "{table}: {out}{err}");
        holder.execute("ROLLBACK").await.unwrap();
    }
    // A rebuild that fails after the freeze says that the sale is frozen.
    let (code, out, err) = run_with(Some(&world), &rebuild, Some("rebuild.gathered=error")).await;
    assert!(code == 1 && err.contains("is frozen, and stays so until a rebuild finishes"), "{out}{err}");
    assert_eq!(state().await, SaleState::Frozen);
    let (code, out, err) = run(Some(&world), &rebuild).await;
    assert!(code == 0 && out.contains("is open again"), "{out}{err}");
}
