//! Reading a sale again and again, from a Redis of its own: the readings by which a front refuses buyers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbuster::domain::{Number, Sale, SaleState, Verdict};
use doorbuster::gate::{Gate, SaleReader, SaleReading};
use doorbuster::rehearsal::servers::{Ending, Server};

use crate::support::{Database, World, ask_redis, attempt, private_redis, sale, until};

const LONG: Duration = Duration::from_secs(20);

struct Opened {
    redis: Server,
    /// Redis's; it is removed when this is dropped.
    folder: tempfile::TempDir,
    gate: Gate,
    sale: Sale,
}

async fn opened() -> Opened {
    let (mut world, folder) = (World::new(Database::Sqlite).await, tempfile::tempdir().unwrap());
    let redis = private_redis(&mut world, folder.path()).await;
    let gate = Gate::open(world.config().gate()).expect("a gate");
    let sale = sale(&world.name, 9, 1);
    world.load(&gate, &sale).await;
    Opened { redis, folder, gate, sale }
}

async fn buy(gate: &Gate, sale: &Sale, user: &str) {
    let verdict = gate.admit(attempt(&sale.id, user, None, 1)).await.unwrap();
    assert!(matches!(verdict, Verdict::Accepted(_)), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_is_described_again_only_if_something_has_changed() {
    let Opened { redis, gate, sale, folder: _folder } = opened().await;
    let begin = Instant::now();
    let mut reader = gate.reader(&sale.id);
    let mut known: SaleReading = reader.read().await.unwrap().expect("loaded");
    for user in ["ada", "bob"] {
        for _ in 0..20 {
            let same = reader.read().await.unwrap().expect("loaded");
            assert!(Arc::ptr_eq(&same.sale, &known.sale), "{same:?}");
        }
        buy(&gate, &sale, user).await;
        let changed = reader.read().await.unwrap().expect("loaded");
        assert_eq!(changed.sale.items[0].left, known.sale.items[0].left - 1);
        known = changed;
    }
    let stats: String = ask_redis(&redis.url, "INFO commandstats").await;
    let count = |command: &str| -> u128 {
        let line = stats.lines().find(|line| line.starts_with(command)).expect("its statistics");
        line.split(['=', ',']).nth(1).expect("calls").parse().expect("a number")
    };
    // One for each description, and at most ten a second.
    let calls = count("cmdstat_exec:");
    let due = 3 + begin.elapsed().as_millis() / 100;
    assert!((3..=due).contains(&calls), "{calls} transactions, and {due} were due");
    let scripts = count("cmdstat_evalsha:");
    assert!(scripts < 20, "{scripts} scripts ran for forty readings");

    // Freezing takes no number, and a frozen sale is no reading.
    gate.freeze_if_behind(&sale.id, Number { epoch: 1, seq: known.sale.number.seq + 1 }).await.unwrap();
    assert_eq!(gate.describe(&sale.id).await.unwrap().expect("loaded").state, SaleState::Frozen);
    assert!(reader.read().await.unwrap().is_none());
    redis.stop(Ending::AtOnce).await;
}

/// The very next reading after a master became a replica, while its last check is still young.
#[tokio::test(flavor = "multi_thread")]
async fn no_reading_comes_from_a_replica() {
    let Opened { redis, gate, sale, folder: _folder } = opened().await;
    let mut reader = gate.reader(&sale.id);
    for _ in 0..5 {
        checked_now(&mut reader).await;
        let () = ask_redis(&redis.url, "REPLICAOF 127.0.0.1 1").await;
        let read = reader.read().await;
        assert!(read.is_err(), "{read:?}");
        let () = ask_redis(&redis.url, "REPLICAOF NO ONE").await;
    }
    redis.stop(Ending::AtOnce).await;
}

/// A restarted Redis may have forgotten who holds what, until its books are compared.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_was_not_compared_is_not_read() {
    let Opened { redis, gate, sale, folder: _folder } = opened().await;
    let mut reader = gate.reader(&sale.id);
    assert!(reader.read().await.unwrap().is_some());
    let () = ask_redis(&redis.url, "SCRIPT FLUSH").await;
    until("the next check", LONG, async || reader.read().await.unwrap().is_none().then_some(())).await;
    for _ in 0..5 {
        // Which loads the script that describes, and not the one that admits.
        assert!(gate.describe(&sale.id).await.unwrap().is_some());
        assert!(reader.read().await.unwrap().is_none());
    }
    buy(&gate, &sale, "ada").await;
    assert!(reader.read().await.unwrap().is_some());
    redis.stop(Ending::AtOnce).await;
}

/// A restart ends every connection, and the call that notices may be another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_reading_does_not_outlive_its_connection() {
    let Opened { redis, gate, sale, folder: _folder } = opened().await;
    let mut readers = [gate.reader(&sale.id), gate.reader(&sale.id)];
    for _ in 0..5 {
        for reader in &mut readers {
            checked_now(reader).await;
        }
        let () = ask_redis(&redis.url, "SCRIPT FLUSH").await;
        let _: i64 = ask_redis(&redis.url, "CLIENT KILL TYPE normal SKIPME yes").await;
        until("other calls work again", LONG, async || gate.describe(&sale.id).await.ok()).await;
        for reader in &mut readers {
            for _ in 0..5 {
                assert!(!matches!(reader.read().await, Ok(Some(_))), "Redis was not compared");
            }
        }
        gate.ensure_compared().await.unwrap();
    }
    redis.stop(Ending::AtOnce).await;
}

/// Reads until Redis has just been asked whether it was compared.
async fn checked_now(reader: &mut SaleReader) {
    tokio::time::sleep(Duration::from_millis(120)).await;
    until("a reading", LONG, async || reader.read().await.ok().flatten()).await;
}
