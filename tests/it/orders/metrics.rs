//! What monitoring is shown: names and labels as Prometheus has them, and figures for each route and each stage.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use doorbuster::process::Running;
use doorbuster::telemetry::{METRICS, SALE_GAUGES};

use crate::support::{Buyer, Database, World, request, sale, until};

/// The value of a metric, given with its labels.
fn value(text: &str, metric: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' ')?.parse().ok())
}

async fn metrics(running: &Running) -> String {
    request(running.operations, "GET", "/metrics", &[], b"").await.text
}

/// What `promtool check metrics` finds fault with.
fn complaints(text: &str) -> String {
    let piped = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = piped.expect("promtool");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_named_as_prometheus_has_it_and_each_is_explained() {
    let world = World::new(Database::Postgres).await;
    let running = world.running().await;
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&running.parts, &sale).await;
    Buyer::of(&running, "ada").buy(sale.id.as_str(), "k").await;
    let text = until("the sale's gauges", Duration::from_secs(20), async || {
        Some(metrics(&running).await).filter(|text| text.contains("doorbuster_gate_units_left"))
    })
    .await;
    assert_eq!(complaints(&text), "");
    let known: BTreeSet<&str> =
        METRICS.iter().map(|metric| metric.name).chain(SALE_GAUGES.iter().map(|gauge| gauge.name)).collect();
    let named = |prefix| -> BTreeSet<&str> {
        text.lines().filter_map(|line: &str| line.strip_prefix(prefix)?.split(' ').next()).collect()
    };
    assert_eq!(named("# TYPE "), named("# HELP "));
    assert!(named("# TYPE ").is_subset(&known), "{:?}", named("# TYPE ").difference(&known));
    // The check above finds such things.
    let bad = "# TYPE doorbuster_queue_wait_ms counter\ndoorbuster_queue_wait_ms 1\n";
    assert!(complaints(bad).contains("_total"), "{}", complaints(bad));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_route_method_and_status() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, 1, 1);
    world.open_sale(&running.parts, &sale).await;
    let (ada, bob) = (Buyer::of(&running, "ada"), Buyer::of(&running, "bob"));
    let count = |route: &str, method: &str, status: u16| {
        format!(
            "doorbuster_http_request_duration_seconds_count{{route=\"{route}\",method=\"{method}\",status=\"{status}\"}}"
        )
    };
    let expected = [
        count("/v1/sales/{sale}/orders", "POST", 202),
        count("/v1/sales/{sale}/orders", "POST", 409),
        count("/v1/sales/{sale}/orders/{id}", "GET", 200),
        count("/v1/sales/{sale}/orders", "other", 405),
        count("none", "GET", 404),
        count("/v1/admin/sales/{sale}", "GET", 401),
    ];
    // Other tests of this process are counted as well.
    let before = metrics(&running).await;
    let order = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(order.status, 202, "{}", order.text);
    assert_eq!(bob.buy(sale.id.as_str(), "k").await.status, 409);
    ada.get(&format!("{}?wait=10", order.headers["location"])).await;
    let path = format!("/v1/sales/{}/orders", sale.id.as_str());
    request(ada.at, "BREW", &path, &[], b"").await;
    ada.get("/v1/no/such/path").await;
    request(running.operations, "GET", &format!("/v1/admin/sales/{}", sale.id.as_str()), &[], b"").await;
    let after = metrics(&running).await;
    for metric in expected {
        let (before, after) = (value(&before, &metric).unwrap_or(0.0), value(&after, &metric));
        assert!(
            after > Some(before),
            "{metric}: {before}, then {after:?}\n{}",
            lines_of(&metrics(&running).await)
        );
    }
    let lag = value(&after, "doorbuster_order_persist_lag_seconds_count");
    assert!(lag >= Some(1.0), "{lag:?}");
    assert!(value(&after, "doorbuster_http_connections{listener=\"buyers\"}") >= Some(0.0));
    assert!(value(&after, "doorbuster_database_connections_max") >= Some(1.0));
    running.stop().await;
}

fn lines_of(text: &str) -> String {
    let counts =
        text.lines().filter(|line| line.starts_with("doorbuster_http_request_duration_seconds_count"));
    counts.collect::<Vec<_>>().join("\n")
}
