//! Settings that an operator changes while fronts and workers run.

use std::time::Duration;

use doorbuster::domain::Sale;
use doorbuster::front::{Role, Signer};
use doorbuster::process::Parts;
use doorbuster::rehearsal::chaos::Weather;
use serde_json::{Value, json};

use crate::support::{Answer, Buyer, Database, Doorbuster, World, behind_proxy, request, run, sale, until};

const LONG: Duration = Duration::from_secs(40);

/// A sale of nine units, a front and a worker, each a process of its own.
struct Shop {
    world: World,
    sale: Sale,
    front: Doorbuster,
    worker: Doorbuster,
    tokens: Signer,
}

impl Shop {
    async fn open(world: World) -> Self {
        let parts: Parts = world.parts().await;
        let sale = sale(&world.name, 9, 1);
        world.open_sale(&parts, &sale).await;
        let front = Doorbuster::start(&world, "front").await;
        let worker = Doorbuster::start(&world, "worker").await;
        let tokens = Signer::new(world.config().auth());
        Self { world, sale, front, worker, tokens }
    }

    fn buyer(&self, name: &str) -> Buyer {
        Buyer::with(self.front.buyers.expect("a front"), &self.tokens, name, None)
    }

    fn operator(&self, role: Role) -> Buyer {
        Buyer::with(self.front.operations, &self.tokens, "op", Some(role))
    }

    /// An answer other than that of a front that has not reached its servers yet.
    async fn buy(&self, name: &str) -> Answer {
        let buyer = self.buyer(name);
        until("the servers answer", LONG, async || {
            let answer = buyer.try_buy(self.sale.id.as_str(), "k").await?;
            Some(answer).filter(|answer| !["gate_unavailable", "outcome_unknown"].contains(&answer.code()))
        })
        .await
    }

    async fn set(&self, name: &str, value: &str) {
        let body = json!({"name": name, "value": value, "reason": "a test"}).to_string();
        let answer = self.operator(Role::Operator).post("/v1/admin/settings:set", &[], &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }

    async fn unset(&self, name: &str) {
        let body = json!({"name": name}).to_string();
        let answer = self.operator(Role::Operator).post("/v1/admin/settings:unset", &[], &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }

    /// Returns once `/readyz` shows these modes and no others.
    async fn until_in(&self, process: &Doorbuster, modes: &Value) {
        until("the modes", LONG, async || {
            let answer = request(process.operations, "GET", "/readyz", &[], b"").await;
            let shown = answer.json.get("modes").cloned().unwrap_or_else(|| json!([]));
            (shown == *modes && answer.status == 200).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_front_takes_no_order_and_no_cancellation_until_it_is_unset() {
    let mut world = World::new(Database::Postgres).await;
    let proxy = behind_proxy(&mut world, "database.url").await;
    world.set("database.timeout_ms=2000");
    let shop = Shop::open(world).await;
    let first = shop.buy("ada").await;
    assert_eq!(first.status, 202, "{}", first.text);
    let order = first.headers["location"].clone();

    shop.set("front.read_only", "true").await;
    shop.until_in(&shop.front, &json!(["read_only"])).await;
    let refused = shop.buyer("bob").buy(shop.sale.id.as_str(), "k").await;
    assert_eq!((refused.status, refused.code()), (503, "read_only"), "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after") && refused.json["retryable"] == true);
    let cancelled = shop.buyer("ada").post(&format!("{order}:cancel"), &[], "").await;
    assert_eq!((cancelled.status, cancelled.code()), (503, "read_only"), "{}", cancelled.text);
    let read = shop.buyer("ada").get(&order).await;
    assert!(read.status == 200 && read.json["status"] != "cancelled", "{}", read.text);
    let mode = |name| format!("doorbuster_degraded_mode{{mode=\"{name}\"}}");
    assert!(shop.front.metric(&mode("read_only")).await > 0.5);
    assert!(shop.worker.metric(&mode("read_only")).await < 0.5, "a worker takes no orders anyway");

    // It stays while the database does not answer.
    proxy.set(Weather::Down);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let refused = shop.buyer("bob").buy(shop.sale.id.as_str(), "k").await;
    assert_eq!(refused.code(), "read_only", "{}", refused.text);
    proxy.set(Weather::Fair);
    // A front that starts later follows, too.
    let later = Doorbuster::start(&shop.world, "front").await;
    shop.until_in(&later, &json!(["read_only"])).await;

    shop.unset("front.read_only").await;
    shop.until_in(&shop.front, &json!([])).await;
    assert_eq!(shop.buy("bob").await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_wait_in_the_queue_while_persistence_is_paused() {
    let shop = Shop::open(World::new(Database::Sqlite).await).await;
    shop.set("worker.persist", "false").await;
    shop.until_in(&shop.worker, &json!(["persistence_paused"])).await;
    let readiness = request(shop.worker.operations, "GET", "/readyz", &[], b"").await;
    assert_eq!(readiness.json["status"], "degraded", "{}", readiness.text);
    shop.until_in(&shop.front, &json!([])).await;
    let taken = shop.buy("ada").await;
    assert_eq!(taken.status, 202, "{}", taken.text);
    let order = taken.headers["location"].clone();
    let waited = shop.buyer("ada").get(&format!("{order}?wait=3")).await;
    assert_eq!(waited.json["status"], "accepted", "{}", waited.text);

    shop.set("worker.persist", "true").await;
    until("the row", LONG, async || {
        let read = shop.buyer("ada").get(&order).await;
        (read.json["status"] == "confirmed").then_some(())
    })
    .await;
    shop.until_in(&shop.worker, &json!([])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readings_are_shed_rates_change_and_a_full_front_takes_no_orders() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("log.level=info");
    let shop = Shop::open(world).await;
    assert_eq!(shop.buy("ada").await.status, 202);
    let path = format!("/v1/sales/{}", shop.sale.id.as_str());

    shop.set("front.shed_reads_percent", "100").await;
    shop.until_in(&shop.front, &json!(["shedding_reads"])).await;
    for path in [path.clone(), format!("{path}/orders/mine")] {
        let shed = shop.buyer("ada").get(&path).await;
        assert_eq!((shed.status, shed.code()), (503, "status_unavailable"), "{}", shed.text);
        assert!(shed.json["detail"].to_string().contains("a part of all readings"), "{}", shed.text);
    }
    assert_eq!(shop.buy("bob").await.status, 202, "orders are taken");
    shop.unset("front.shed_reads_percent").await;

    shop.set("front.refuse_above_mb", "1").await;
    shop.until_in(&shop.front, &json!(["refusing_by_memory"])).await;
    let refused = shop.buy("cem").await;
    assert_eq!((refused.status, refused.code()), (503, "overloaded"), "{}", refused.text);
    assert!(refused.json["detail"].to_string().contains("short of memory"), "{}", refused.text);
    shop.unset("front.refuse_above_mb").await;
    shop.until_in(&shop.front, &json!([])).await;
    assert_eq!(shop.buy("cem").await.status, 202);

    shop.set("front.buyer_rate", "1/3600s").await;
    until("the rate", LONG, async || {
        let read = shop.buyer("dora").get(&format!("{path}/orders/mine")).await;
        (read.code() == "rate_limited").then_some(())
    })
    .await;

    // The level hides what is followed meanwhile, and no more.
    shop.set("log.level", "error").await;
    shop.set("front.read_only", "true").await;
    shop.until_in(&shop.front, &json!(["read_only"])).await;
    shop.unset("front.read_only").await;
    shop.until_in(&shop.front, &json!([])).await;
    shop.set("log.level", "info").await;
    let level = "log.level=\\\"info\\\"";
    until("the level again", LONG, async || shop.front.has_logged(level).then_some(())).await;
    assert!(!shop.front.has_logged("front.read_only"), "hidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_listed_with_who_and_why_and_bad_ones_change_nothing() {
    let shop = Shop::open(World::new(Database::Sqlite).await).await;
    let command = async |args: &[&str]| run(Some(&shop.world), args).await;
    let (code, out, err) =
        command(&["settings", "set", "worker.lanes", "2", "--reason", "the database is slow"]).await;
    assert!(code == 0 && err.is_empty(), "{code} {out}{err}");
    let line = out.lines().find(|line| line.starts_with("worker.lanes")).expect("a line");
    assert!(
        line.contains(" 2 ") && line.contains(" 4 ") && line.contains("(the database is slow)"),
        "{line}"
    );

    for (name, value, says) in [
        ("worker.lanes", "0", "it must be 1 to 16"),
        ("worker.batch", "1", "these can: front.address_rate"),
        ("front.shed_reads_percent", "half", "it must be 0 to 100"),
    ] {
        let (code, _, err) = command(&["settings", "set", name, value]).await;
        assert!(code == 2 && err.contains(says), "{code} {err}");
        let body = json!({"name": name, "value": value}).to_string();
        let answer = shop.operator(Role::Operator).post("/v1/admin/settings:set", &[], &body).await;
        assert_eq!((answer.status, answer.code()), (422, "invalid_setting"), "{}", answer.text);
    }
    let viewer = shop.operator(Role::Viewer);
    let refused = viewer.post("/v1/admin/settings:set", &[], r#"{"name":"worker.lanes","value":"1"}"#).await;
    assert_eq!(refused.status, 403);

    let listed = viewer.get("/v1/admin/settings").await;
    let of = |name: &str| {
        let all = listed.json["settings"].as_array().expect("a list").clone();
        all.into_iter().find(|setting| setting["name"] == name).expect("known")
    };
    assert_eq!((&of("worker.lanes")["value"], &of("worker.lanes")["configured"]), (&json!("2"), &json!("4")));
    assert!(of("worker.persist").get("set").is_none(), "{}", listed.text);

    let (code, out, err) = command(&["settings", "unset", "worker.lanes"]).await;
    assert!(code == 0 && !out.contains("the database is slow"), "{code} {out}{err}");
    let (_, acts, _) = command(&["acts"]).await;
    for act in ["settings set", "settings unset"] {
        assert!(acts.lines().any(|line| line.contains(act) && line.contains("worker.lanes")), "{acts}");
    }
}
