//! What buyers and strangers read while a server is away names no server, no address and no error of a library. The
//! operators read it.

use std::collections::BTreeSet;
use std::time::Duration;

use doorbuster::domain::Millis;
use doorbuster::front::{Role, signature};
use doorbuster::process::Running;
use doorbuster::rehearsal::chaos::Weather;

use crate::support::{
    Answer, Buyer, Database, PAYMENT_SECRETS, World, at_rest, behind_proxy, request, sale, until,
};

/// Words of the servers, the libraries and this design, in lower case.
const INSIDE: [&str; 20] = [
    "redis",
    "rabbit",
    "amqp",
    "lapin",
    "postgres",
    "sql",
    "database",
    "broker",
    "gate ",
    "connection",
    "connect",
    "socket",
    "127.0.0.1",
    "localhost",
    "tcp",
    "pool",
    "os error",
    "panic",
    "script",
    "rebuil",
];

/// Every call that somebody without an operator's token can make.
async fn answers(running: &Running, world: &World, owner: &Buyer, location: &str) -> Vec<(String, Answer)> {
    let (at, orders) = (running.buyers.expect("a front"), format!("/v1/sales/{}/orders", world.name));
    let (_, secret) = PAYMENT_SECRETS.rsplit_once(' ').unwrap();
    let (provider, sent) = ("acme", Millis::now().0 / 1000);
    let order = location.rsplit_once('/').unwrap().1;
    let event = format!(
        r#"{{"type":"payment.succeeded","data":{{"sale_id":"{}","order_id":"{order}"}}}}"#,
        world.name
    );
    let (id, stamp) = (format!("evt-{}", Millis::now().0), sent.to_string());
    let signed = signature(secret, &id, sent, &event).expect("signed");
    let headers =
        [("webhook-id", id.as_str()), ("webhook-timestamp", &stamp), ("webhook-signature", &signed)];
    let stranger = Buyer::of(running, &format!("late{}", Millis::now().0));
    vec![
        ("the sale".into(), request(at, "GET", &format!("/v1/sales/{}", world.name), &[], b"").await),
        ("an unknown sale".into(), request(at, "GET", "/v1/sales/nothing", &[], b"").await),
        ("buying".into(), stranger.post(&orders, &[("idempotency-key", "k")], "").await),
        ("a repeat".into(), owner.post(&orders, &[("idempotency-key", "k")], "").await),
        ("an order".into(), owner.get(location).await),
        ("another's order".into(), stranger.get(location).await),
        ("one's orders".into(), owner.get(&format!("{orders}/mine")).await),
        ("cancelling".into(), stranger.post(&format!("{location}:cancel"), &[], "").await),
        (
            "a payment".into(),
            request(at, "POST", &format!("/v1/payments/callback/{provider}"), &headers, event.as_bytes())
                .await,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_to_a_buyer_names_a_server() {
    let mut world = World::new(Database::Postgres).await;
    world
        .set(PAYMENT_SECRETS)
        .set("redis.timeout_ms=300")
        .set("queue.timeout_ms=1000")
        .set("intake.confirm_within_ms=300")
        .set("intake.durability=broker_only")
        .set("intake.sale_cache_ms=0")
        .set("database.timeout_ms=1000");
    let mut proxies = Vec::new();
    for key in ["redis.url", "queue.url", "database.url"] {
        proxies.push((key, behind_proxy(&mut world, key).await));
    }
    let running = world.running().await;
    let sale = sale(&world.name, 100, 1);
    world.open_sale(&running.parts, &sale).await;
    let owner = Buyer::of(&running, "owner");
    let location = owner.buy(sale.id.as_str(), "k").await.headers["location"].clone();
    for (server, proxy) in &proxies {
        let mut failed = BTreeSet::new();
        for weather in [Weather::Down, Weather::Frozen, Weather::AnswersLost] {
            proxy.set(weather);
            for (what, answer) in answers(&running, &world, &owner, &location).await {
                assert!(!answer.headers.contains_key("server"), "{what}: {:?}", answer.headers);
                if answer.status < 400 {
                    continue;
                }
                let text = answer.text.to_lowercase();
                let inside: Vec<_> = INSIDE.into_iter().filter(|word| text.contains(word)).collect();
                assert!(inside.is_empty(), "{what}, {server} {weather:?}: {inside:?} in {}", answer.text);
                if answer.status >= 500 {
                    failed.insert(what);
                }
            }
        }
        proxy.set(Weather::Fair);
        assert!(!failed.is_empty(), "{server} was not missed");
        until("every server answers again", Duration::from_secs(60), async || {
            let ready = request(running.operations, "GET", "/readyz", &[], b"").await;
            (ready.json["status"] == "ready").then_some(())
        })
        .await;
    }
    // An operator reads the cause.
    proxies[2].1.set(Weather::Down);
    let admin = Buyer::operator(&running, Role::Admin);
    let answer = admin.get(&format!("/v1/admin/sales/{}/orders", world.name)).await;
    assert_eq!(answer.code(), "act_unfinished", "{}", answer.text);
    assert!(answer.json["detail"].as_str().unwrap().contains("database"), "{}", answer.text);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_blames_the_server_that_is_away_and_no_other() {
    let mut world = World::new(Database::Postgres).await;
    world.set("database.timeout_ms=1000").set("worker.hold_ms=1000");
    let proxy = behind_proxy(&mut world, "database.url").await;
    let running = world.running().await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&running.parts, &sale).await;
    proxy.set(Weather::Frozen);
    // Fronts sell on, so the worker meets the outage.
    assert_eq!(Buyer::of(&running, "ada").buy(sale.id.as_str(), "k").await.status, 202);
    let ready = until("the worker waits for the database", Duration::from_secs(60), async || {
        let ready = request(running.operations, "GET", "/readyz", &[], b"").await;
        let why = ready.json["dependencies"]["broker"]["detail"].as_str().unwrap_or_default();
        why.contains("until redis and the database answer").then_some(ready)
    })
    .await;
    assert_eq!((ready.status, ready.json["status"].as_str()), (200, Some("degraded")), "{}", ready.text);
    let up = |name: &str| ready.json["dependencies"][name]["up"].as_bool();
    assert_eq!((up("redis"), up("broker"), up("database")), (Some(true), Some(true), Some(false)));
    proxy.set(Weather::Fair);
    assert_eq!(at_rest(&running, &sale).await.live_orders, 1);
    running.stop().await;
}
