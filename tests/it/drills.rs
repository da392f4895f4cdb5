//! Runs each drill as a command, with a small crowd.

use crate::support::{Buyer, Database, World, run};

async fn drill(args: &[&str]) -> serde_json::Value {
    let mut all = vec!["drill"];
    all.extend_from_slice(args);
    all.extend_from_slice(&["--output", "json"]);
    let (code, out, err) = run(None, &all).await;
    assert_eq!(code, 0, "{out}{err}");
    serde_json::from_str(&out).expect("a report as JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn oversell_sells_exactly_the_stock() {
    let report = drill(&["oversell", "--units", "100", "--buyers", "300"]).await;
    assert_eq!(report["verdict"]["sold"], 100, "{report}");
    assert_eq!(report["answers"], serde_json::json!({"accepted": 100, "sold_out": 200}));
    assert_eq!(report["balances"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_gives_each_user_one_order() {
    let report = drill(&["duplicate"]).await;
    assert_eq!(report["verdict"]["sold"], 2, "{report}");
    assert_eq!(report["answers"], serde_json::json!({"accepted": 2, "repeat": 9, "already_ordered": 9}));
}

#[tokio::test(flavor = "multi_thread")]
async fn rush_answers_everyone() {
    let report = drill(&["rush", "--units", "300", "--buyers", "1000", "--rate", "500"]).await;
    assert_eq!(report["answered_percent"], 100.0, "{report}");
    assert_eq!(report["verdict"]["sold"], 300);
    assert!(report["latency_ms"]["p99"].as_f64().expect("a number") > 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_act_of_live_control_is_tried_during_a_rush() {
    let args = ["rush", "--units", "300", "--buyers", "3000", "--rate", "500", "--live-control"];
    let report = drill(&args).await;
    assert_eq!(report["balances"], true, "{report}");
    let acts = report["acts"].as_array().expect("acts");
    for verb in ["pause", "resume", "restock", "change"] {
        let done = |act: &&serde_json::Value| {
            act["act"].as_str().is_some_and(|act| act.starts_with(verb)) && act["told"] == "done"
        };
        assert!(acts.iter().any(|act| done(&act)), "{verb}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_returns_drill_ends_with_every_unit_paid() {
    let report = drill(&["returns", "--units", "150", "--pay-within", "1"]).await;
    assert_eq!(report["paid"], 150, "{report}");
    assert!(report["accepted"].as_u64().expect("a number") > 200, "returned units were sold again: {report}");
    assert!(report["ended"]["expired"].as_u64().expect("a number") > 0, "{report}");
    let (code, _, err) = run(None, &["drill", "returns", "--buyers", "5"]).await;
    assert!(code == 2 && err.contains("leave out --buyers"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_chaos_drill_balances() {
    let args = ["drill", "chaos", "--seed", "4", "--faults", "8", "--seconds", "20", "--units", "800"];
    // By default the sweep looks at a confirmed order without a row after 10 s and again after 30. The books have to be at
    // rest 20 s after the end, and the broker is killed shortly before.
    let soon = ["--set", "sweep.overtaken_after_ms=3000"];
    let (code, out, err) = run(None, &[&args[..], &soon].concat()).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains(" · 0 oversold · 0 duplicate · 0 lost"), "{out}");
    assert!(!out.contains("contradictions") && !out.contains("leaked"), "{out}");
    assert!(out.contains("8 inflicted") && out.contains("restock"), "{out}");
    for state in ["paid", "cancelled", "expired"] {
        assert!(out.contains(state), "{state}: {out}");
    }
    assert!(err.contains("the same again: doorbuster drill chaos --seed 4"), "{err}");
    let (code, _, err) = run(None, &["drill", "chaos", "--rate", "5"]).await;
    assert!(code == 2 && err.contains("a private stack"), "{err}");
    let (code, _, err) = run(None, &["drill", "rush", "--seed", "5"]).await;
    assert!(code == 2 && err.contains("belong to drill chaos"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drill_runs_against_a_stack_at_a_given_url() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let (url, operations) = (running.buyers.expect("a front").to_string(), running.operations.to_string());
    let args =
        ["drill", "oversell", "--units", "5", "--buyers", "20", "--url", &url, "--operations", &operations];
    let (code, out, err) = run(Some(&world), &args).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("sold 5 of 5 · 0 oversold · 0 duplicate · 0 lost"), "{out}");
    let sales = Buyer::operator(&running, doorbuster::front::Role::Viewer).get("/v1/admin/sales").await;
    assert_eq!(sales.json["sales"][0]["state"], "closed", "the drill closes its sale");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drill_exits_with_code_4_when_the_books_do_not_balance() {
    let mut world = World::new(Database::Sqlite).await;
    // No worker runs, so no accepted order is ever finished, and the drill must report that.
    world.set("database.timeout_ms=1000");
    let running = world.running_as(doorbuster::process::Role::Front).await;
    let (url, operations) = (running.buyers.expect("a front").to_string(), running.operations.to_string());
    let args = [
        "drill",
        "oversell",
        "--units",
        "3",
        "--buyers",
        "4",
        "--settle-within",
        "2",
        "--url",
        &url,
        "--operations",
        &operations,
    ];
    let (code, out, err) = run(Some(&world), &args).await;
    assert_eq!(code, 4, "{out}{err}");
    assert!(out.contains("3 lost") && out.contains("3 unfinished"), "{out}");
    running.stop().await;
}
