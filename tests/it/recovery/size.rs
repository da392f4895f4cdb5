//! A sale with so many orders that no single query goes through them, and that reading all takes longer than
//! `database.timeout_ms`.
//!
//! Few rows do, because the database is made weak: `orders` becomes a view on which every statement takes an eighth of
//! a second, and fails if it reads too many rows.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use doorbuster::audit::audit;
use doorbuster::domain::ActRequest;
use doorbuster::process::Role;
use doorbuster::rehearsal::chaos::Weather;

use crate::recovery::repair::{forget, rebuild};
use crate::support::{Backup, Database, World, ask_redis, behind_proxy, run, run_with, sale, servers};

/// Adding them up takes thirty statements, which is 3.6 seconds.
const ORDERS: i64 = 20_000;
const TIMEOUT: &str = "database.timeout_ms=2500";

/// How long a server does not answer: longer than a call may take, and shorter than a rebuild waits.
const HELD: Duration = Duration::from_millis(2_500);

const ROWS: &str = "INSERT INTO orders (id, sale_id, user_id, sku, quantity, status, epoch, seq, limit_per_user, fence, \
     key_digest, live_key, fingerprint, version, accepted_at_ms, recorded_at_ms, updated_at_ms) \
     SELECT ('018bcfe568007000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid, sale.id, md5(n::text), 'unit', 1, \
         CASE WHEN n % 10 = 0 THEN 'cancelled' ELSE 'paid' END, 1, n + 100, 1, 1, substr(md5(n::text), 1, 16), \
         CASE WHEN n % 10 = 0 THEN NULL ELSE substr(md5(n::text), 1, 16) END, 'AAAAAAAAAAA', 2, 1700000000000, \
         1700000000000, 1700000000000 FROM sales AS sale, generate_series(1, $N) AS n";
const COUNTERS: &str = "UPDATE items SET sold = (SELECT COUNT(*) FROM orders WHERE live_key IS NOT NULL)";
const WEAK: [&str; 4] = [
    "ANALYZE orders",
    "ALTER TABLE orders RENAME TO all_orders",
    "CREATE FUNCTION weak() RETURNS boolean LANGUAGE plpgsql VOLATILE COST 100000 AS 'BEGIN \
         IF current_setting(''weak.at'', true) IS DISTINCT FROM statement_timestamp()::text THEN \
             PERFORM set_config(''weak.at'', statement_timestamp()::text, false), \
                 set_config(''weak.rows'', ''0'', false), pg_sleep(0.12); \
         END IF; \
         PERFORM set_config(''weak.rows'', (current_setting(''weak.rows'')::int + 1)::text, false); \
         IF current_setting(''weak.rows'')::int > 4000 THEN RAISE EXCEPTION ''too many rows in one statement''; END IF; \
         RETURN true; END'",
    "CREATE VIEW orders AS SELECT * FROM all_orders WHERE weak()",
];

/// The load of a large sale takes minutes, and servers are busy then.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_does_not_cost_a_rebuild() {
    let mut world = World::new(Database::Postgres).await;
    world.set("gate.rebuild=manual").set("redis.timeout_ms=500").set("database.timeout_ms=1000");
    let front = world.running_as(Role::Front).await;
    // More than three pages.
    let sale = sale(&world.name, 9_000, 1);
    world.open_sale(&front.parts, &sale).await;
    front.stop().await;
    let database = Backup::of(&world);
    database.execute_in_place(&ROWS.replace("$N", "9000")).await;
    database.execute_in_place(COUNTERS).await;
    forget(&world, &sale).await;
    let stalled =
        [behind_proxy(&mut world, "redis.url").await, behind_proxy(&mut world, "database.url").await];
    let parts = world.parts().await;
    let stalls = AtomicUsize::new(0);
    let stall = |what: &str, _| {
        let nth = stalls.fetch_add(usize::from(what == "orders loaded"), Ordering::Relaxed);
        if let Some(proxy) = stalled.get(nth).filter(|_| what == "orders loaded").cloned() {
            proxy.set(Weather::Frozen);
            tokio::spawn(async move {
                tokio::time::sleep(HELD).await;
                proxy.set(Weather::Fair);
            });
        }
    };
    let rebuilt = rebuild(&world, &parts).run(&sale.id, &ActRequest::by("test"), &stall).await.unwrap();
    assert!(stalls.into_inner() > 2, "both servers were stalled");
    assert_eq!(rebuilt.users, 9_000);
    let books = audit(&parts.gate, &parts.store, &sale.id).await.unwrap();
    assert!(books.balances() && books.is_at_rest(), "{books:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_no_query_reads_in_time_is_audited_rebuilt_and_exported() {
    let mut world = World::new(Database::Postgres).await;
    world.set(TIMEOUT).set("gate.rebuild=manual");
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, ORDERS + 100, 1);
    world.open_sale(&front.parts, &sale).await;
    front.stop().await;
    let database = Backup::of(&world);
    database.execute_in_place(&ROWS.replace("$N", &ORDERS.to_string())).await;
    database.execute_in_place(COUNTERS).await;
    for statement in WEAK {
        database.execute_in_place(statement).await;
    }
    forget(&world, &sale).await;
    let live = ORDERS - ORDERS / 10;

    // A rebuild that fails after the users were staged leaves none of them in Redis, and the sale frozen.
    let rebuild = ["rebuild", "--sale", sale.id.as_str(), "--yes"];
    let (code, out, err) = run_with(Some(&world), &rebuild, Some("rebuild.staged=error")).await;
    assert!(code == 1 && err.contains("injected"), "{code} {out}{err}");
    let staged = format!("KEYS {}:{{{}}}:staged:*", world.name, sale.id);
    let staged: Vec<String> = ask_redis(&servers().redis, &staged).await;
    assert_eq!(staged, [] as [&str; 0]);

    let (code, out, err) = run(Some(&world), &rebuild).await;
    assert!(code == 0 && out.contains(&format!("{ORDERS} users, 0 orders in flight")), "{code} {out}{err}");
    assert!(out.contains("balances") && out.contains(&format!("live {live}")), "{out}");
    let (code, out, err) = run(Some(&world), &["audit", "--all"]).await;
    assert!(code == 0 && out.contains(&format!("live {live}")), "{code} {out}{err}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sale.jsonl");
    let export = ["export", "--sale", sale.id.as_str(), "--file", file.to_str().unwrap()];
    let (code, out, err) = run(Some(&world), &export).await;
    assert!(code == 0 && err.contains(&format!("{ORDERS} orders")), "{code} {out}{err}");
    let (code, out, err) =
        run(Some(&world), &["replay", "run", "file", file.to_str().unwrap(), "--yes"]).await;
    assert!(code == 0 && out.contains("already there"), "{code} {out}{err}");
}
