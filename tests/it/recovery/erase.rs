//! An erased name is in no table and in no key of Redis any more.

use std::time::Duration;

use doorbuster::domain::{Sale, Terms};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};

use crate::orders::payments::{SECRET, buy_one, event};
use crate::support::{Buyer, Database, World, ask_redis, at_rest, run, sale, until};

const LONG: Duration = Duration::from_secs(40);

/// The columns of all tables that hold this text somewhere, as `table.column`.
async fn columns_with(world: &World, text: &str) -> Vec<String> {
    let mut database = sqlx::SqliteConnection::connect(&world.config().database.url).await.unwrap();
    let columns = "SELECT tables.name, columns.name FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns \
                   WHERE tables.type = 'table'";
    let columns: Vec<(String, String)> =
        database.fetch_all(columns).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(columns.len() > 50, "{columns:?}");
    let mut found = Vec::new();
    for (table, column) in columns {
        let count = format!(
            "SELECT count(*) FROM \"{table}\" WHERE instr(lower(CAST(\"{column}\" AS TEXT)), '{text}') > 0"
        );
        let count: i64 = database.fetch_one(AssertSqlSafe(count)).await.unwrap().get(0);
        if count > 0 {
            found.push(format!("{table}.{column}"));
        }
    }
    found
}

/// The keys of this world that hold this text, in their name or their value.
async fn keys_with(world: &World, text: &str) -> Vec<String> {
    let url = world.config().redis.url;
    let keys: Vec<String> = ask_redis(&url, &format!("KEYS {}*", world.name)).await;
    let mut found = Vec::new();
    for key in keys {
        let kind: String = ask_redis(&url, &format!("TYPE {key}")).await;
        let read = match kind.as_str() {
            "string" => format!("GET {key}"),
            "hash" => format!("HGETALL {key}"),
            "zset" => format!("ZRANGE {key} 0 -1"),
            "set" => format!("SMEMBERS {key}"),
            "list" => format!("LRANGE {key} 0 -1"),
            "none" => continue,
            other => panic!("{key} is a {other}"),
        };
        let value: redis::Value = ask_redis(&url, &read).await;
        let mut texts = Vec::new();
        collect(&value, &mut texts);
        if texts.iter().chain([&key]).any(|value| value.to_lowercase().contains(text)) {
            found.push(key);
        }
    }
    found
}

fn collect(value: &redis::Value, into: &mut Vec<String>) {
    match value {
        redis::Value::BulkString(bytes) => into.push(String::from_utf8_lossy(bytes).into_owned()),
        redis::Value::SimpleString(text) => into.push(text.clone()),
        redis::Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_name_is_in_no_table_and_in_no_key() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=200").set(&format!("payments.secrets=acme {SECRET}"));
    let running = world.running().await;
    let terms = Terms { user_rate: "100/10s".parse().ok(), ..Terms::default() };
    let sale = Sale { terms, ..sale(&world.name, 9, 2) };
    world.open_sale(&running.parts, &sale).await;
    let name = sale.id.as_str();
    let cli = async |args: &[&str]| {
        let (code, out, err) = run(Some(&world), args).await;
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    };
    // One order is paid. Another is cancelled by an operator, and paid too late.
    let paid = buy_one(&running, &sale, "zaphod").await;
    assert_eq!(event("evt-1", "payment.succeeded", &sale, &paid).send(&running).await.status, 200);
    let zaphod = Buyer::of(&running, "zaphod");
    let second = zaphod.buy(name, "k2").await;
    assert_eq!(second.status, 202, "{}", second.text);
    let others = buy_one(&running, &sale, "trillian").await;
    at_rest(&running, &sale).await;
    cli(&["order", "cancel", name, second.order_id(), "--reason", "Zaphod called us"]).await;
    cli(&["order", "cancel", name, &others, "--reason", "bought for zaphod"]).await;
    let late = event("evt-2", "payment.succeeded", &sale, second.order_id());
    until("the late payment is for a new order", LONG, async || {
        Some(late.send(&running).await).filter(|answer| answer.json["state"] == "retaken")
    })
    .await;
    cli(&["sale", "pause", name, "--reason", "zaphod complained", "--by", "grace"]).await;
    cli(&["sale", "resume", name, "--reason", "the zaphodites may go on"]).await;
    cli(&["sale", "pause", name, "--message", "Zaphod's stage is wet"]).await;
    cli(&["sale", "resume", name]).await;
    cli(&["settings", "set", "worker.lanes", "3", "--reason", "zaphod buys too much"]).await;
    at_rest(&running, &sale).await;
    let before = columns_with(&world, "zaphod").await;
    for column in [
        "orders.user_id",
        "user_units.user_id",
        "order_events.reason",
        "sale_acts.reason",
        "sale_acts.args",
        "live_settings.reason",
    ] {
        assert!(before.iter().any(|found| found == column), "{column} had the name: {before:?}");
    }
    assert!(!keys_with(&world, "zaphod").await.is_empty());

    cli(&["sale", "close", name]).await;
    cli(&["sale", "archive", name]).await;
    cli(&["user", "erase", "zaphod", "--yes", "--reason", "a letter by zaphod"]).await;
    // Another word than the name.
    assert_eq!(columns_with(&world, "zaphod").await, ["sale_acts.reason"]);
    let acts = cli(&["acts"]).await;
    assert!(acts.contains("the zaphodites may go on"), "{acts}");
    assert!(!acts.contains("complained") && !acts.contains("letter"), "{acts}");
    assert_eq!(keys_with(&world, "zaphod").await, Vec::<String>::new());
    running.stop().await;
}
