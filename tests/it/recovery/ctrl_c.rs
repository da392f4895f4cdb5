//! Ctrl-C in the middle of a recovery: the command ends soon, leaves nothing half done, and says how to go on.

use std::process::Stdio;
use std::time::Duration;

use doorbuster::domain::{Act, SaleState};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::repair::{act, left};
use crate::seams::queue::take;
use crate::support::{
    Backup, Database, World, at_rest, attempt, buy, configure, everything_is_witnessed, run, sale, until,
    verdicts,
};

const LONG: Duration = Duration::from_secs(60);

fn interrupt(child: &Child) {
    let pid = child.id().expect("it runs").to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_replay_after_its_batch_and_names_the_command_that_resumes_it() {
    let mut world = World::new(Database::Postgres).await;
    world.set("maintenance.every_ms=100").set("worker.hold_ms=1000");
    let running = world.running().await;
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..2).await;
    at_rest(&running, &sale).await;
    everything_is_witnessed(&running, &sale).await;
    let database = Backup::of(&world);
    database.make().await;
    let lost = buy(&running, &sale, 2..12).await;
    at_rest(&running, &sale).await;
    act(&running.parts, &sale, lost[9], Act::Pay).await;
    everything_is_witnessed(&running, &sale).await;
    database.restore().await;
    until("the loss of the database is noticed", LONG, async || running.parts.store.behind()).await;
    let mut replay = Command::new(env!("CARGO_BIN_EXE_doorbuster"));
    configure(&mut replay, &world);
    replay.args(["replay", "run", "log", "--rate", "2", "--yes"]).kill_on_drop(true);
    let mut replay = replay.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(replay.stderr.take().unwrap()).lines();
    until("the replay has restored an order", LONG, async || {
        running.parts.store.orders_by_id(&lost).await.unwrap().first().map(drop)
    })
    .await;
    interrupt(&replay);
    let mut resume = None;
    while let Some(line) = said.next_line().await.unwrap() {
        resume = line.strip_prefix("resume it with: doorbuster ").map(str::to_owned).or(resume);
    }
    let ended = tokio::time::timeout(LONG, replay.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(3));
    let restored = running.parts.store.orders_by_id(&lost).await.unwrap().len();
    assert!((1..10).contains(&restored), "{restored}");
    assert!(running.parts.store.behind().is_some());
    let resume = resume.expect("the command that resumes it");
    let (code, out, err) = run(Some(&world), &resume.split(' ').collect::<Vec<_>>()).await;
    assert!(code == 0 && out.contains("is up to date now"), "{code} {out}{err}");
    assert_eq!(at_rest(&running, &sale).await.live_orders, 12);
    running.stop().await;
}

/// Starts a command while nobody can use a table, and returns when it waits for that. The connection has the lock.
async fn waiting_for(world: &World, table: &str, arguments: &[&str]) -> (Child, PgConnection) {
    let mut holder = PgConnection::connect(&world.config().database.url).await.unwrap();
    let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
    holder.execute(AssertSqlSafe(lock)).await.unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbuster"));
    configure(&mut command, world);
    command.args(arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut watcher = PgConnection::connect(&world.config().database.url).await.unwrap();
    until("the command waits for the table", LONG, async || {
        let waiting = "SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation \
             WHERE relname = $1 AND NOT granted";
        let waiting = sqlx::query_as(waiting).bind(table);
        let (waiting,): (i64,) = waiting.fetch_one(&mut watcher).await.unwrap();
        (waiting > 0).then_some(())
    })
    .await;
    (child, holder)
}

/// Exit code and standard error of a command that ends soon.
async fn ends(child: Child) -> (Option<i32>, String) {
    let ended = tokio::time::timeout(Duration::from_secs(10), child.wait_with_output()).await;
    let ended = ended.expect("it ends although the database does not answer").unwrap();
    (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

/// Runs a command while nobody can read an order, and ends it by Ctrl-C.
async fn interrupted_while_it_reads(world: &World, arguments: &[&str]) -> (Option<i32>, String) {
    let (child, mut holder) = waiting_for(world, "orders", arguments).await;
    interrupt(&child);
    let ended = ends(child).await;
    holder.execute("ROLLBACK").await.unwrap();
    ended
}

/// Runs a command that hangs at a failure point, and ends it there by Ctrl-C.
async fn interrupted_at(world: &World, point: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbuster"));
    configure(&mut command, world);
    command.args(arguments);
    command.env("DOORBUSTER_FAULT", format!("{point}=hang")).kill_on_drop(true);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut lines, mut said) = (BufReader::new(child.stderr.take().unwrap()).lines(), String::new());
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.contains("failure point reached") {
            interrupt(&child);
        }
        said.push_str(&line);
    }
    let ended = tokio::time::timeout(LONG, child.wait()).await.expect("it ends").unwrap();
    (ended.code(), said)
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_an_audit_an_export_and_a_rebuild() {
    let mut world = World::new(Database::Postgres).await;
    world.set("gate.rebuild=manual").set("database.timeout_ms=30000");
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..4).await;
    at_rest(&running, &sale).await;
    running.stop().await;
    let parts = world.parts().await;
    let name = sale.id.as_str();

    for audit in [&["audit", "--sale", name][..], &["audit", "--sale", name, "--repair", "--yes"]] {
        let (code, err) = interrupted_while_it_reads(&world, audit).await;
        assert!(code == Some(3) && err.contains("audit again"), "{audit:?}: {code:?} {err}");
    }
    let plan = ["replay", "plan", "log", "--since", "1h"];
    let (code, err) = interrupted_while_it_reads(&world, &plan).await;
    assert!(code != Some(0) && !err.contains("panicked"), "{code:?} {err}");
    let (code, out, err) = run(Some(&world), &["audit", "--sale", name]).await;
    assert_eq!(code, 0, "{out}{err}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sale.jsonl");
    std::fs::write(&file, "the export of yesterday").unwrap();
    let export = ["export", "--sale", name, "--file", file.to_str().unwrap()];
    let (code, err) = interrupted_while_it_reads(&world, &export).await;
    assert!(code == Some(1) && err.contains("is as it was"), "{code:?} {err}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "the export of yesterday");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a part is left");

    let rebuild = ["rebuild", "--sale", name, "--yes"];
    let (code, err) = interrupted_while_it_reads(&world, &rebuild).await;
    assert!(code == Some(1) && err.contains("stays so until a rebuild finishes"), "{code:?} {err}");
    let (code, err) = interrupted_at(&world, "rebuild.read", &rebuild).await;
    assert!(code == Some(1) && err.contains("stays so until a rebuild finishes"), "{code:?} {err}");
    let gate = parts.gate.describe(&sale.id).await.unwrap().expect("loaded");
    assert_eq!(gate.state, SaleState::Frozen);
    // At once: it has left no lease behind.
    let (code, out, err) = run(Some(&world), &rebuild).await;
    assert!(code == 0 && out.contains("is open again"), "{code} {out}{err}");
    assert_eq!(left(&parts, &sale).await, 5);
}

/// The plan is shown by then, and the first step waits for the database.
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_repair_before_its_next_step() {
    let mut world = World::new(Database::Postgres).await;
    world.set("database.timeout_ms=30000");
    let parts = world.parts().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&parts, &sale).await;
    let attempts = ["ann", "bob"].map(|user| attempt(&sale.id, user, None, 1));
    verdicts(&parts.gate, &sale.id, &attempts).await;
    let repair = ["audit", "--sale", sale.id.as_str(), "--repair", "--yes", "--older-than", "0"];
    let (child, mut holder) = waiting_for(&world, "operator_acts", &repair).await;
    interrupt(&child);
    // Otherwise the answer of the database could come before the signal.
    tokio::time::sleep(Duration::from_millis(500)).await;
    holder.execute("ROLLBACK").await.unwrap();
    let (code, err) = ends(child).await;
    assert!(code == Some(3) && err.contains("what was repaired stays"), "{code:?} {err}");
    assert_eq!(take(&world, "orders").await, None, "an order was published after Ctrl-C");
    let (code, out, err) = run(Some(&world), &repair).await;
    assert!(code == 0 && out.matches("published again").count() == 2, "{code} {out}{err}");
}
