//! `doctor`: it names what is amiss with each server and what to do, and changes nothing.

use std::time::Duration;

use crate::support::{Database, World, run};

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_nothing_amiss_where_all_is_well_and_changes_nothing() {
    for database in [Database::Sqlite, Database::Postgres, Database::Mariadb] {
        let world = World::new(database).await;
        // Without its tables and its queues.
        let before = world.config().store();
        let (code, out, err) = run(Some(&world), &["doctor"]).await;
        assert_eq!(code, 3, "{database:?}: {out}{err}");
        assert!(out.contains("run `doorbuster migrate`") && out.contains("not declared yet"), "{out}{err}");
        if let Some(file) = before.url.strip_prefix("sqlite:") {
            assert!(!std::path::Path::new(file).exists(), "doctor has created {file}");
        }
        let running = world.running().await;
        let (code, out, err) = run(Some(&world), &["doctor", "--output", "json"]).await;
        assert_eq!(code, 0, "{database:?}: {out}{err}");
        let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(report["well"], true);
        let found = |server: &str, check: &str| {
            let findings = report["findings"].as_array().expect("a list").iter();
            findings
                .filter(|finding| finding["server"] == server && finding["check"] == check)
                .filter_map(|finding| finding["found"].as_str())
                .collect::<Vec<_>>()
                .join("; ")
        };
        assert!(found("redis", "version").starts_with("Redis 7"), "{out}");
        assert!(found("broker", "version").starts_with("RabbitMQ "), "{out}");
        assert!(found("broker", "queue").contains(&format!("{}.orders is declared", world.name)), "{out}");
        assert_eq!(found("database", "rights"), "reads and writes every table", "{out}");
        for server in ["redis", "database"] {
            assert!(found(server, "clock").starts_with("off by "), "{out}");
            assert!(!found(server, "settings").is_empty(), "{out}");
        }
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_each_server_that_is_away_and_examines_the_others() {
    let ready = World::new(Database::Sqlite).await;
    ready.running().await.stop().await;
    for (server, pair, advice) in [
        ("redis", "redis.url=redis://127.0.0.1:1", "correct redis.url"),
        ("broker", "queue.url=amqp://127.0.0.1:1", "start RabbitMQ, or correct queue.url"),
        ("database", "database.url=postgres://root@127.0.0.1:1/none", "correct database.url"),
    ] {
        let mut world = World::with(ready.overrides.clone());
        world.set(pair);
        let began = std::time::Instant::now();
        let (code, out, err) = run(Some(&world), &["doctor"]).await;
        assert_eq!(code, 3, "{server}: {out}{err}");
        let amiss: Vec<&str> = out.lines().filter(|line| line.starts_with("AMISS")).collect();
        assert!(
            amiss.len() == 1 && amiss[0].contains(server) && amiss[0].contains("reachable"),
            "{out}{err}"
        );
        assert!(out.contains(advice) && out.contains("127.0.0.1:1"), "{out}{err}");
        let others = ["redis", "broker", "database"].into_iter().filter(|other| *other != server);
        for other in others {
            assert!(out.contains(&format!("ok     {other:<8}  reachable")), "{other}: {out}{err}");
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_settings_that_start_refuses_and_queues_with_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(Database::Sqlite).await;
    let redis = crate::support::private_redis(&mut world, folder.path()).await;
    world.running().await.stop().await;
    let _: String = crate::support::ask_redis(&redis.url, "CONFIG SET appendfsync everysec").await;
    world.set("queue.delivery_limit=7");
    let (code, out, err) = run(Some(&world), &["doctor"]).await;
    assert_eq!(code, 3, "{out}{err}");
    assert!(
        out.contains("redis has appendfsync = everysec") && out.contains("to do: set it to always"),
        "{out}"
    );
    assert!(out.contains("to do: restore queue.delivery_limit"), "{out}");
    redis.stop(doorbuster::rehearsal::servers::Ending::AtOnce).await;
}
