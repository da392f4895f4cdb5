//! Callers without any right. What one of their requests costs is bounded, whatever it says.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use doorbuster::domain::Millis;
use doorbuster::front::{AuthSettings, Signer};
use doorbuster::rehearsal::servers::Ending;
use futures_util::StreamExt as _;

use crate::faults::stalls::Session;
use crate::support::{
    Database, Doorbuster, LoginKey, PAYMENT_SECRETS, World, ask_redis, private_redis, request, run, sale,
    send_raw,
};

/// CPU time of one request, at most.
const MOST: Duration = Duration::from_millis(5);
const REQUESTS: u32 = 100;

/// The CPU time that a process has used, from the kernel's clock of a hundredth of a second.
fn cpu(process: &Doorbuster) -> Duration {
    let pid = process.child.id().expect("it runs");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().map(|at| after_name[*at].parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_signature_costs_more_than_five_milliseconds() {
    let mut world = World::new(Database::Sqlite).await;
    world.set(PAYMENT_SECRETS);
    let (code, out, err) = run(Some(&world), &["migrate"]).await;
    assert_eq!(code, 0, "{out}{err}");
    let front = Doorbuster::start(&world, "front").await;
    let at = front.buyers.expect("a front");
    let body = vec![b'x'; 60 * 1024];
    let now = (Millis::now().0 / 1000).to_string();
    let right_length = format!("v1,{} ", STANDARD.encode([7; 32]));
    // As many as fit into the head of a request.
    for (signatures, answered) in [
        (right_length.repeat(8), 401),
        (right_length.repeat(300), 401),
        ("v1,A ".repeat(3_000), 401),
        ("v1,A ".repeat(100_000), 431),
    ] {
        let before = cpu(&front);
        for nth in 0..REQUESTS {
            let provider = ["shop", "acme", "nobody"][nth as usize % 3];
            let headers = [
                ("webhook-id", "msg_1"),
                ("webhook-timestamp", now.as_str()),
                ("webhook-signature", signatures.trim()),
            ];
            let path = format!("/v1/payments/callback/{provider}");
            if answered == 431 {
                let text = raw(at, &path, &headers).await;
                assert!(text.starts_with("HTTP/1.1 431"), "{text:?}");
                continue;
            }
            let answer = request(at, "POST", &path, &headers, &body).await;
            assert_eq!(answer.status, answered, "{}", answer.text);
            assert_eq!(answer.code(), "bad_signature", "{provider}: {}", answer.text);
            assert_eq!(answer.text.contains("may have 8"), signatures.len() > 400, "{}", answer.text);
        }
        let each = (cpu(&front) - before) / REQUESTS;
        assert!(each <= MOST, "{each:?} for {} bytes of signatures", signatures.len());
    }
}

/// What anybody can send to a front whose tokens come from a login: each kind, and the answers that may be given.
fn of_strangers(
    sale: &str,
    key: &LoginKey,
) -> Vec<(&'static str, &'static str, String, Sent, &'static [u16])> {
    let orders = format!("/v1/sales/{sale}/orders");
    let order = br#"{"sku":"shoe","quantity":1}"#.to_vec();
    let bearer = |token: String| Sent { bearer: Some(token), body: order.clone() };
    let nothing = || Sent { bearer: None, body: Vec::new() };
    let body = |body: Vec<u8>| Sent { bearer: None, body };
    let by_secret =
        Signer::new(AuthSettings::with_secret("a secret that the front does not know, and long enough"));
    let user = "eve".parse().unwrap();
    let claims = key.token("eve").split('.').nth(1).unwrap().to_owned();
    let refused = |what, token: String| {
        let answers: &'static [u16] = &[401];
        (what, "POST", orders.clone(), bearer(token), answers)
    };
    vec![
        ("no token", "POST", orders.clone(), body(order.clone()), &[401]),
        refused("8,000 letters as a token", "x".repeat(8_000)),
        refused("an EdDSA token by another key", LoginKey::new("k1").token("eve")),
        refused("an ES256 token by another key", LoginKey::es256("ec").token("eve")),
        refused("an RS256 token by another key", LoginKey::rs256("rsa").token("eve")),
        refused("a token by an unknown key", LoginKey::new("k2").token("eve")),
        refused("an HS256 token", by_secret.mint(&user, None, 600)),
        refused("a token without a signature", format!("eyJhbGciOiJub25lIn0.{claims}.")),
        ("60 KB for an order", "POST", orders.clone(), body(vec![b'x'; 60_000]), &[401, 413]),
        ("4,000 brackets for an order", "POST", orders.clone(), body(vec![b'['; 4_000]), &[401]),
        ("the orders of nobody", "GET", format!("{orders}/mine"), nothing(), &[401]),
        ("a sale", "GET", format!("/v1/sales/{sale}"), nothing(), &[200]),
        ("a sale that does not exist", "GET", "/v1/sales/nothing".into(), nothing(), &[404]),
        ("a path that does not exist", "GET", format!("/{}", "x/".repeat(4_000)), nothing(), &[404]),
        ("events of a sale that does not exist", "GET", "/v1/sales/nothing/events".into(), nothing(), &[404]),
        ("the description of the API", "GET", "/openapi.json".into(), nothing(), &[200]),
        ("the page for readers", "GET", "/docs".into(), nothing(), &[200]),
    ]
}

struct Sent {
    bearer: Option<String>,
    body: Vec<u8>,
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_of_a_stranger_costs_more_than_five_milliseconds() {
    let mut world = World::new(Database::Sqlite).await;
    let (folder, key) = (tempfile::tempdir().unwrap(), LoginKey::new("k1"));
    let keys = folder.path().join("jwks.json");
    let all = [&key, &LoginKey::es256("ec"), &LoginKey::rs256("rsa")];
    std::fs::write(&keys, LoginKey::set_of(&all)).unwrap();
    world.set("auth.secret=").set(&format!("auth.jwks={}", keys.display()));
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&world.parts().await, &sale).await;
    let front = Doorbuster::start(&world, "front").await;
    let at = front.buyers.expect("a front");
    // The key is known, so that forgers have it verified.
    let path = format!("/v1/sales/{}/orders/mine", sale.id);
    let known = [("authorization", format!("Bearer {}", key.token("ada")))];
    let known: Vec<_> = known.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(request(at, "GET", &path, &known, b"").await.status, 200);

    for (what, method, path, sent, answers) in of_strangers(sale.id.as_str(), &key) {
        let authorization = sent.bearer.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = authorization.iter().map(|value| ("authorization", value.as_str())).collect();
        let before = cpu(&front);
        // At once: those that name unknown keys wait for one reading of the keys, and the front's own work would count.
        let all = (0..REQUESTS).map(|_| request(at, method, &path, &headers, &sent.body));
        for answer in futures_util::future::join_all(all).await {
            assert!(answers.contains(&answer.status), "{what}: {} {}", answer.status, answer.text);
        }
        let each = (cpu(&front) - before) / REQUESTS;
        println!("{what}: {each:?}");
        assert!(each <= MOST, "{what}: {each:?}");
    }
}

/// The beginning of the answer to a head that is never read to its end.
async fn raw(at: std::net::SocketAddr, path: &str, headers: &[(&str, &str)]) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("POST {path} HTTP/1.1\r\nhost: doorbuster\r\n{headers}\r\n");
    send_raw(at, head.as_bytes(), Duration::from_secs(10)).await.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn known_and_unknown_providers_answer_alike() {
    let mut world = World::new(Database::Sqlite).await;
    world.set(PAYMENT_SECRETS);
    let front = world.running_as(doorbuster::process::Role::Front).await;
    let now = (Millis::now().0 / 1000).to_string();
    let old = (Millis::now().0 / 1000 - 3_600).to_string();
    let known = PAYMENT_SECRETS.split_once('=').unwrap().1.split(' ').next().unwrap();
    let signature = format!("v1,{}", STANDARD.encode([7; 32]));
    for (at, signature) in
        [(&now, signature.as_str()), (&old, signature.as_str()), (&now, "v2,x"), (&now, "")]
    {
        let mut answers = Vec::new();
        for provider in [known, "nobody"] {
            let headers = [
                ("webhook-id", "msg_1"),
                ("webhook-timestamp", at.as_str()),
                ("webhook-signature", signature),
            ];
            let path = format!("/v1/payments/callback/{provider}");
            let answer = request(front.buyers.unwrap(), "POST", &path, &headers, b"{}").await;
            let detail = answer.json["detail"].clone();
            answers.push((answer.status, answer.code().to_owned(), detail));
        }
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0].0, 401);
    }
    front.stop().await;
}

/// All are counted. The log has ten lines a second of them at most, and none has a token.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_counted_and_a_few_of_them_logged() {
    const REFUSED: usize = 300;
    let world = World::new(Database::Sqlite).await;
    world.parts().await;
    let front = Doorbuster::start(&world, "front").await;
    let at = front.buyers.expect("a front");
    let stranger = AuthSettings::with_secret("a secret that the front does not know, and long enough");
    let token = Signer::new(stranger).mint(&"eve".parse().unwrap(), None, 600);
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let begun = std::time::Instant::now();
    let all = (0..REFUSED).map(|_| request(at, "GET", "/v1/sales/shoes/orders/mine", &headers, b""));
    for answer in futures_util::future::join_all(all).await {
        assert_eq!(answer.status, 401, "{}", answer.text);
    }
    let counted =
        front.metric("doorbuster_front_problems_total{code=\"unauthenticated\",reason=\"signature\"}").await;
    assert_eq!(counted, REFUSED as f64);
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    let lines = front.logged("refused a request");
    assert!((1..=10 * (seconds + 2)).contains(&lines.len()), "{} lines in {seconds} s", lines.len());
    let secrets = token.split('.').collect::<Vec<_>>();
    let leaked = front.logged("").into_iter().find(|line| secrets.iter().any(|part| line.contains(part)));
    assert_eq!(leaked, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_buyer_may_read_and_cancel_only_so_often() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("front.buyer_rate=5/1000s");
    let front = world.running_as(doorbuster::process::Role::Front).await;
    let sale = crate::support::sale(&world.name, 5, 1);
    world.open_sale(&front.parts, &sale).await;
    let ada = crate::support::Buyer::of(&front, "ada");
    let order = ada.buy(sale.id.as_str(), "k").await;
    let (path, mine) = (&order.headers["location"], format!("/v1/sales/{}/orders/mine", sale.id));
    for nth in 0..6 {
        let answers = match nth % 3 {
            0 => ada.get(path).await,
            1 => ada.get(&mine).await,
            _ => ada.post(&format!("{path}:cancel"), &[], r#"{"reason":7}"#).await,
        };
        assert_eq!(answers.status == 429, nth == 5, "{nth}: {}", answers.text);
    }
    let limited = ada.get(path).await;
    assert_eq!(
        (limited.code(), limited.json["limit"].as_str()),
        ("rate_limited", Some("5/1000s")),
        "{}",
        limited.text
    );
    assert!(limited.headers.contains_key("retry-after"));
    assert_eq!(ada.buy(sale.id.as_str(), "k").await.order_id(), order.order_id(), "a repeat is no reading");
    // Waiting for its outcome is one, and nobody writes the row.
    let (orders, headers) =
        (format!("/v1/sales/{}/orders", sale.id), [("idempotency-key", "k"), ("prefer", "wait=10")]);
    let waited = Duration::from_secs(8);
    let repeat =
        tokio::time::timeout(waited, ada.post(&orders, &headers, "")).await.expect("answered at once");
    assert_eq!((repeat.status, repeat.order_id()), (202, order.order_id()), "{}", repeat.text);
    let bob = crate::support::Buyer::of(&front, "bob");
    assert_eq!(bob.get(&mine).await.status, 200, "another buyer");
    front.stop().await;
}

/// Commands that a Redis has processed, and transactions of the world's database.
async fn work_of_servers(world: &World, sql: &mut Session) -> (i64, i64) {
    let info: String = ask_redis(&world.config().redis.url, "INFO stats").await;
    let commands =
        info.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).expect("a count");
    // A session writes its count down a second after it has become idle.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    (commands.trim().parse().unwrap(), sql.numbers(commits.into()).await[0])
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_unknown_sales_cost_neither_redis_nor_the_database() {
    const ASKED: i64 = 2_000;
    const KNOWN: i64 = 500;
    const AN_ORDER: &str = "0190c2a4-7b1e-7c3a-9d51-3f6f1a2b4c5d";
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(Database::Postgres).await;
    let redis = private_redis(&mut world, folder.path()).await;
    world.set("front.address_rate=9999/1s").set("front.buyer_rate=9999/1s");
    let front = world.running_as(doorbuster::process::Role::Front).await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&front.parts, &sale).await;
    let at = front.buyers.expect("a front");
    let mut sql = Session::open(&world).await;
    // What a front does anyway.
    let idle = Duration::from_secs(4);
    let before = work_of_servers(&world, &mut sql).await;
    tokio::time::sleep(idle).await;
    let after = work_of_servers(&world, &mut sql).await;
    let per_second = (after.1 - before.1) as f64 / idle.as_secs_f64();
    let anyway = |began: std::time::Instant| (per_second * began.elapsed().as_secs_f64()) as i64;
    let (before, began) = (after, std::time::Instant::now());
    // A buyer of the shop, for whom an order would be looked for.
    let eve = crate::support::Buyer::of(&front, "eve");
    let ask = async |prefix: &'static str| {
        let asking = (0..ASKED).map(|nth| {
            let (eve, sale) = (&eve, format!("/v1/sales/{prefix}{nth}"));
            async move {
                match nth % 4 {
                    0 => eve.get(&format!("{sale}/orders/{AN_ORDER}")).await.status,
                    1 => eve.get(&format!("{sale}/orders/{AN_ORDER}/events")).await.status,
                    2 => eve.post(&format!("{sale}/orders/{AN_ORDER}:cancel"), &[], "").await.status,
                    _ => request(at, "GET", &sale, &[], b"").await.status,
                }
            }
        });
        let answers: Vec<u16> = futures_util::stream::iter(asking).buffer_unordered(50).collect().await;
        assert!(answers.iter().all(|status| *status == 404), "{answers:?}");
    };
    ask("nobody").await;
    let after = work_of_servers(&world, &mut sql).await;
    let (commands, commits) = (after.0 - before.0, after.1 - before.1 - anyway(began));
    assert!(commands < ASKED / 2 && commits < ASKED / 10, "{commands} commands, {commits} transactions");

    // A new sale is found soon, and is not read again because others are asked for.
    let path = format!("/v1/sales/{}", sale.id.as_str());
    let (before, began) = (work_of_servers(&world, &mut sql).await, std::time::Instant::now());
    let known = async {
        for _ in 0..KNOWN {
            assert_eq!(request(at, "GET", &path, &[], b"").await.status, 200);
        }
    };
    tokio::join!(ask("stranger"), known);
    let after = work_of_servers(&world, &mut sql).await;
    let commits = after.1 - before.1 - anyway(began);
    assert!(commits < ASKED / 10, "{commits} transactions for {KNOWN} readings of a known sale");
    front.stop().await;
    redis.stop(Ending::AtOnce).await;
}
