//! How far back the order log reaches, next to the age of the last backup.

use std::time::Duration;

use doorbuster::domain::Millis;
use doorbuster::process::Running;
use doorbuster::queue::OrderLog;
use doorbuster::rehearsal::servers::{Ending, Kind, Server};
use lapin::options::{BasicPublishOptions, QueueDeleteOptions};
use sqlx::{Connection as _, Executor as _};

use crate::seams::queue::channel;
use crate::support::{Database, World, at_rest, buy, request, run, sale, until};

pub async fn gauge(running: &Running, name: &str) -> Option<f64> {
    let metrics = request(running.operations, "GET", "/metrics", &[], b"").await.text;
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

pub async fn delete_log(world: &World) {
    let log = format!("{}.log", world.name);
    channel(world).await.queue_delete(log.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_the_log_does_not_reach_back_to_is_reported() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=100");
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..3).await;
    at_rest(&running, &sale).await;
    let show = async || run(Some(&world), &["backup", "show"]).await;
    let (code, out, err) = show().await;
    assert!(code == 3 && out.contains("no backup is recorded"), "{code} {out}{err}");
    assert!(out.contains("everything since the first sale"), "{out}");
    let (code, out, err) = run(Some(&world), &["backup", "mark", "--at", "2999-01-01T00:00:00Z"]).await;
    assert!(code == 2 && err.contains("in the future"), "{code} {out}{err}");
    let (code, out, err) = run(Some(&world), &["backup", "mark", "--by", "cron"]).await;
    assert!(code == 0 && out.contains("last backed up at"), "{code} {out}{err}");
    assert_eq!(show().await.0, 0);
    let acts = run(Some(&world), &["acts", "--limit", "1"]).await.1;
    assert!(acts.contains("backup mark") && acts.contains("operator cron"), "{acts}");

    // A sale that is older than the log: without its beginning, nothing before can be restored.
    running.parts.store.mark_backup(Millis(Millis::now().0 - 3_600_000)).await.unwrap();
    let mut database = sqlx::SqliteConnection::connect(&world.config().database.url).await.unwrap();
    database.execute("UPDATE sales SET created_at_ms = created_at_ms - 7200000").await.unwrap();
    delete_log(&world).await;
    buy(&running, &sale, 3..4).await;
    let log = OrderLog::open(world.config().queue());
    until("the log is there again", Duration::from_secs(40), async || log.head().await.ok()).await;
    let (code, out, err) = show().await;
    assert!(code == 3 && out.contains("cannot be brought up to date"), "{code} {out}{err}");
    let (code, _, err) = run(Some(&world), &["backup", "mark"]).await;
    assert_eq!((code, show().await.0), (0, 0), "{err}");
    running.stop().await;

    let running = world.running().await;
    let began = "doorbuster_order_log_begins_timestamp_seconds";
    until("the front has measured it", Duration::from_secs(90), async || {
        let (begins, backup) = (
            gauge(&running, began).await?,
            gauge(&running, "doorbuster_database_backup_timestamp_seconds").await?,
        );
        (begins > 0.0 && begins <= backup).then_some(())
    })
    .await;
    assert_eq!(gauge(&running, "doorbuster_order_log_kept_seconds").await, Some(168.0 * 3_600.0));
    let bytes = async || gauge(&running, "doorbuster_order_log_bytes_total").await.unwrap_or(0.0);
    let before = bytes().await;
    buy(&running, &sale, 4..5).await;
    until("the log has grown", Duration::from_secs(20), async || {
        (bytes().await >= before + 200.0).then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_with_other_limits_is_used_and_doctor_says_so() {
    let mut world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    buy(&running, &sale, 0..1).await;
    running.stop().await;
    world.set("queue.log_hours=200").set("queue.log_mb=4000");
    let running = world.running().await;
    buy(&running, &sale, 1..3).await;
    assert_eq!(at_rest(&running, &sale).await.live_orders, 3);
    let (code, out, err) = run(Some(&world), &["doctor"]).await;
    assert!(code == 3 && out.contains("current is") && out.contains("operating.md"), "{code} {out}{err}");
    // All three orders are in the log.
    let (code, out, err) = run(Some(&world), &["replay", "plan", "log", "--since", "1h"]).await;
    assert!(code == 0 && out.contains("3 already there"), "{code} {out}{err}");
    running.stop().await;
}

/// Fills the log with messages of a quarter of a megabyte.
async fn fill_log(world: &World, megabytes: usize) {
    let (channel, log) = (channel(world).await, format!("{}.log", world.name));
    let options = BasicPublishOptions::default();
    for _ in 0..megabytes * 4 {
        let (exchange, payload) = (log.as_str().into(), vec![b'x'; 250_000]);
        channel.basic_publish(exchange, "".into(), options, &payload, Default::default()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_gives_the_log_higher_and_lower_limits() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("queue.log_mb=10");
    let folder = tempfile::tempdir().unwrap();
    let broker = Server::start(Kind::Rabbitmq, folder.path()).await.unwrap();
    world.set(&format!("queue.url={}", broker.url));
    world.parts().await.gate.check_installation().await.unwrap();
    let log = OrderLog::open(world.config().queue());
    let begins = async || log.head().await.unwrap().offset;
    let limit = async |bytes: u32| {
        let pattern = format!("^{}\\.log$", world.name);
        let definition = format!("{{\"max-length-bytes\":{bytes}}}");
        let policy = ["set_policy", "log", &pattern, &definition, "--apply-to", "queues"];
        broker.control(&policy).await.unwrap();
    };
    assert_eq!(begins().await, 0);
    limit(60_000_000).await;
    fill_log(&world, 25).await;
    assert_eq!(begins().await, 0, "the log is larger than it was declared");
    limit(5_000_000).await;
    until("the log is cut", Duration::from_secs(40), async || {
        fill_log(&world, 2).await;
        (begins().await > 0).then_some(())
    })
    .await;
    broker.stop(Ending::AtOnce).await;
}
