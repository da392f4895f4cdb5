//! The database goes back in time while everything runs: nothing that it says is acted upon or passed on until a replay
//! of the order log has brought it up to date. The front sells on all the time.

use std::time::Duration;

use doorbuster::domain::{Act, ActRequest, OrderId, OrderStatus, Sale};
use doorbuster::gate::{GateError, Outcome, Settlement};
use doorbuster::lease::LeaseOptions;
use doorbuster::orders::Orders;
use doorbuster::process::Running;
use doorbuster::settlement::{SettlementError, give_back};
use doorbuster::store::{Change, Changed, OrderRow, Return, Store, StoreError};

use crate::support::{
    Backup, Buyer, Database, World, at_rest, buy, everything_is_witnessed, request, run, run_with, sale,
    until,
};

const LONG: Duration = Duration::from_secs(60);

/// A restore cuts off the connections of the pool, and each of them says so once.
async fn rows_of(running: &Running, sale: &Sale) -> Vec<OrderRow> {
    let store = &running.parts.store;
    until("the rows can be read", LONG, async || store.orders_after(&sale.id, None, 1_000).await.ok()).await
}

async fn rows(running: &Running, sale: &Sale) -> Vec<(String, OrderStatus, i32)> {
    let rows = rows_of(running, sale).await;
    let short = |row: &OrderRow| (row.order.user.to_string(), row.status, row.version);
    rows.iter().map(short).collect()
}

/// Pays all orders of the sale, but cancels those of these users.
async fn pay_all(running: &Running, sale: &Sale, cancelled: &[&str]) {
    let orders =
        Orders::new(running.parts.gate.clone(), running.parts.store.clone(), running.parts.leases.clone());
    let request = ActRequest::by("operator ada");
    for row in rows_of(running, sale).await {
        if row.status == OrderStatus::Confirmed {
            let act = if cancelled.contains(&row.order.user.as_str()) { Act::Cancel } else { Act::Pay };
            until("the act is done", LONG, async || {
                orders.act(&sale.id, row.order.id, act, &request).await.ok()
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_went_back_in_time_is_noticed_and_brought_up_to_date() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100").set("worker.hold_ms=1000");
    let running = world.running().await;
    let mut sale = sale(&world.name, 30, 1);
    sale.terms.pay_within_s = Some(3_600);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..5).await;
    at_rest(&running, &sale).await;
    let backup = Backup::of(&world);
    backup.make().await;

    buy(&running, &sale, 5..10).await;
    at_rest(&running, &sale).await;
    pay_all(&running, &sale, &["user2", "user7"]).await;
    at_rest(&running, &sale).await;
    everything_is_witnessed(&running, &sale).await;
    let before = rows(&running, &sale).await;

    // In what comes back, every deadline has passed.
    backup.execute("UPDATE orders SET pay_by_ms = 1 WHERE pay_by_ms IS NOT NULL").await;
    backup.restore().await;
    until("the audit says so", LONG, async || {
        let (code, out, _) = run(Some(&world), &["audit", "--sale", sale.id.as_str()]).await;
        (code == 4 && out.contains("the database has lost commits")).then_some(())
    })
    .await;
    until("readiness says so", LONG, async || {
        let ready = request(running.operations, "GET", "/readyz", &[], b"").await;
        let database = &ready.json["dependencies"]["database"];
        let is_behind = database["up"] == false && database["detail"].as_str()?.contains("went back in time");
        (is_behind && ready.json["status"] == "degraded").then_some(())
    })
    .await;
    // Many rounds of maintenance, which would expire what the backup believes to be unpaid.
    let until_then = tokio::time::Instant::now() + Duration::from_secs(3);
    let mut read = 0;
    while tokio::time::Instant::now() < until_then {
        for user in ["user0", "user6", "user7"] {
            let answer = Buyer::of(&running, user).get(&format!("/v1/sales/{}/orders/mine", sale.id)).await;
            assert_eq!(
                (answer.status, answer.code()),
                (503, "status_unavailable"),
                "{user}: {}",
                answer.text
            );
            read += 1;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(read > 9);
    // The front sells on.
    let answer = Buyer::of(&running, "late").buy(sale.id.as_str(), "k").await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    assert_eq!(answer.json["durability"], "broker", "{}", answer.text);
    // Nothing was written to the database.
    let in_backup = rows(&running, &sale).await;
    assert_eq!(in_backup.len(), 5);
    assert!(in_backup.iter().all(|(_, status, _)| *status == OrderStatus::Confirmed), "{in_backup:?}");
    // A command knows nothing of its own, and asks the gate.
    let order = rows_of(&running, &sale).await[0].order.id.to_string();
    let (code, out, err) = run(Some(&world), &["order", "cancel", sale.id.as_str(), &order]).await;
    assert!(code == 1 && err.contains("went back in time"), "{out}{err}");
    let unknown = OrderId::generate().to_string();
    let (code, out, err) = run(Some(&world), &["order", "show", sale.id.as_str(), &unknown]).await;
    assert!(code == 1 && err.contains("went back in time"), "{out}{err}");
    // A repair by such a database would end good orders.
    let (code, out, err) =
        run(Some(&world), &["audit", "--sale", sale.id.as_str(), "--repair", "--yes"]).await;
    assert!(code == 4 && !out.contains("repaired"), "{out}{err}");

    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    println!("{out}{err}");
    assert!(code == 0 && out.contains("is up to date now, on line 2"), "{out}{err}");
    // Everything goes on without a restart: the late order gets its row, and nothing else has changed.
    let books = at_rest(&running, &sale).await;
    let after = rows(&running, &sale).await;
    let (late, others): (Vec<_>, Vec<_>) = after.into_iter().partition(|(user, ..)| user == "late");
    assert_eq!(others, before);
    assert_eq!(late.len(), 1);
    assert_eq!((books.items[0].live, books.items[0].left), (9, 21));
    let answer = Buyer::of(&running, "user0").get(&format!("/v1/sales/{}/orders/mine", sale.id)).await;
    assert_eq!(
        (answer.status, &answer.json["orders"][0]["status"]),
        (200, &"paid".into()),
        "{}",
        answer.text
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_begins_too_late_leaves_the_database_behind() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..5).await;
    at_rest(&running, &sale).await;
    until("the position in the log is recorded", LONG, async || {
        running.parts.store.replay_from().await.ok()?.map(drop)
    })
    .await;
    let backup = Backup::of(&world);
    backup.make().await;
    pay_all(&running, &sale, &[]).await;
    everything_is_witnessed(&running, &sale).await;
    // The log is read to the second.
    tokio::time::sleep(Duration::from_millis(3_100)).await;

    backup.restore().await;
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--since", "1s", "--yes"]).await;
    assert!(code == 3 && out.contains("the database is behind"), "{out}{err}");
    let paid = |rows: &[(String, OrderStatus, i32)]| {
        rows.iter().filter(|(_, status, _)| *status == OrderStatus::Paid).count()
    };
    assert_eq!(paid(&rows(&running, &sale).await), 0);
    let accepted = run(Some(&world), &["replay", "run", "outbox", "--accept-loss", "--yes"]).await;
    assert!(accepted.0 == 2 && accepted.2.contains("--accept-loss"), "{accepted:?}");
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert!(code == 0 && out.contains("is up to date now"), "{out}{err}");
    assert_eq!(paid(&rows(&running, &sale).await), 5);
    at_rest(&running, &sale).await;
    running.stop().await;
}

/// Cancels the order of `user0` in the database alone, and returns what the gate should have back.
async fn cancel_without_the_gate(running: &Running, sale: &Sale) -> Return {
    let parts = &running.parts;
    let row = parts.store.orders_after(&sale.id, None, 1).await.unwrap().remove(0);
    let options = LeaseOptions::lasting(LONG);
    let taken = parts.leases.take(sale.id.as_str(), [row.order.user.as_str()], options).await.unwrap();
    let guard = taken.guard.expect("nobody else acts for the user");
    let line = parts.store.line().await.unwrap();
    let cancel =
        Change { id: row.order.id, act: Act::Cancel, asked: ActRequest::by("test"), fence: guard.token() };
    let changed = parts.store.change(&[cancel], &|| true).await.unwrap();
    assert!(matches!(changed[..], [Changed::Now(_)]), "{changed:?}");
    guard.release().await.unwrap();
    Return { id: row.order.id, sale: sale.id.clone(), user: row.order.user, line }
}

/// A process ends an order and stalls before the gate hears of it. Meanwhile the database goes back to before the end,
/// which the order log does not have yet, and a replay restores the order as live.
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_of_an_end_that_the_database_has_lost_is_not_taken_back() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..1).await;
    at_rest(&running, &sale).await;
    running.stop().await;
    // Nobody else returns the unit, or logs the end.
    world.set("maintenance.every_ms=60000");
    let running = world.running().await;
    let backup = Backup::of(&world);
    backup.make().await;
    let owed = cancel_without_the_gate(&running, &sale).await;
    let (gate, store) = (&running.parts.gate, &running.parts.store);
    until("the gate has witnessed the end", LONG, async || {
        let place = store.places_of(std::slice::from_ref(&sale.id)).await.ok()?.remove(&sale.id)?;
        (gate.describe(&sale.id).await.ok()??.place == place).then_some(())
    })
    .await;
    backup.restore().await;

    // The gate says that the order is live, and must not think otherwise later, although the replay has not ended.
    let replay = ["replay", "run", "log", "--yes"];
    let (_, out, err) = run_with(Some(&world), &replay, Some("line.before=abort")).await;
    let ended = Settlement { id: owed.id, user: owed.user.clone(), outcome: Outcome::Ended };
    let late = gate.settle_in_line(&sale.id, owed.line, &[ended]).await;
    assert!(matches!(late, Err(GateError::Outdated)), "{late:?}\n{out}{err}");
    until("the lease of the replay that died has ended", LONG, async || {
        let (code, out, err) = run(Some(&world), &replay).await;
        assert!(code == 0 && out.contains("is up to date now") || err.contains("is under way"), "{out}{err}");
        (code == 0).then_some(())
    })
    .await;
    until("this process has heard of the new line", LONG, async || {
        match give_back(gate, store, std::slice::from_ref(&owed)).await {
            Err(SettlementError::Store(StoreError::Behind(_))) => None,
            late => {
                assert!(matches!(late, Err(SettlementError::Gate(GateError::Outdated))), "{late:?}");
                Some(())
            }
        }
    })
    .await;
    running.stop().await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let books = at_rest(&running, &sale).await;
    assert!(books.balances() && (books.items[0].live, books.items[0].left) == (1, 4), "{books:?}");

    // What ends from now on goes back.
    pay_all(&running, &sale, &["user0"]).await;
    let books = at_rest(&running, &sale).await;
    assert!(books.balances() && (books.items[0].live, books.items[0].left) == (0, 5), "{books:?}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_say_that_a_database_has_lost_whole_sales() {
    let mut world = World::new(Database::Postgres).await;
    world.set("worker.hold_ms=1000");
    let running = world.running().await;
    let backup = Backup::of(&world);
    backup.make().await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    everything_is_witnessed(&running, &sale).await;
    let (code, out, err) = run(Some(&world), &["doctor"]).await;
    assert!(code == 0 && out.contains("nothing that it had confirmed is missing"), "{out}{err}");

    backup.restore().await;
    let went_back = "the database went back in time";
    for (args, wanted) in [
        (&["audit", "--all"][..], 4),
        (&["audit", "--sale", sale.id.as_str()], 4),
        (&["audit", "--all", "--output", "json"], 4),
        (&["doctor"], 3),
        (&["sale", "list"], 0),
    ] {
        let (code, out, err) = run(Some(&world), args).await;
        assert_eq!(code, wanted, "{args:?}: {out}{err}");
        assert!(format!("{out}{err}").contains(went_back), "{args:?}: {out}{err}");
        if args.contains(&"json") {
            let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
            assert_eq!(report["database_behind"], true, "{out}");
        }
    }
    let (code, out, err) = run(Some(&world), &["replay", "run", "log", "--yes"]).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(!err.contains("ERROR"), "a replay that succeeds reports no error: {err}");
    let (code, out, err) = run(Some(&world), &["audit", "--all"]).await;
    assert!(code == 0 && out.contains(sale.id.as_str()) && !err.contains(went_back), "{out}{err}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stops_leaves_no_change_out_of_the_order_log() {
    let mut world = World::new(Database::Postgres).await;
    // No round of maintenance writes the log meanwhile.
    world.set("maintenance.every_ms=60000");
    let running = world.running().await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    pay_all(&running, &sale, &["user1"]).await;
    let store = running.parts.store.apart();
    assert!(!store.unlogged(100).await.unwrap().entries.is_empty());
    running.stop().await;
    let store = Store::connect(&world.config().store()).await.unwrap();
    assert!(store.unlogged(100).await.unwrap().entries.is_empty());
    store.close().await;
}

/// No place shows such a loss. The gate still knows that the user has the order.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_row_alone_is_gone_is_not_denied() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    let rows = running.parts.store.orders_after(&sale.id, None, 10).await.unwrap();
    let order = &rows.iter().find(|row| row.order.user.as_str() == "user1").unwrap().order;
    Backup::of(&world).execute_in_place("DELETE FROM orders WHERE user_id = 'user1'").await;
    let buyer = Buyer::of(&running, "user1");
    let orders = format!("/v1/sales/{}/orders", sale.id);
    for answer in [
        buyer.get(&format!("{orders}/{}", order.id)).await,
        buyer.get(&format!("{orders}/mine")).await,
        buyer.post(&format!("{orders}/{}:cancel", order.id), &[], "").await,
    ] {
        assert_eq!((answer.status, answer.code()), (503, "status_unavailable"), "{}", answer.text);
    }
    // Of another id nothing is known.
    let unknown = buyer.get(&format!("{orders}/{}", OrderId::generate())).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text);
    running.stop().await;
}
