//! What the clients of one address may take together.

use std::time::Duration;

use doorbuster::domain::Millis;
use doorbuster::front::{AuthSettings, Signer, signature};
use doorbuster::process::Role;

use crate::support::{Database, Events, PAYMENT_SECRETS, World, request, sale, send_raw, until};

/// A stranger's header names no other address, and one address gets no more than its share of connections.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_no_proxy_has_its_own_limits() {
    let mut world = World::new(Database::Sqlite).await;
    world
        .set("front.trusted_proxies=192.0.2.1")
        .set("front.address_header=x-forwarded-for")
        .set("front.address_rate=5/1000s")
        .set("front.address_connections=3");
    let front = world.running_as(Role::Front).await;
    let at = front.buyers.unwrap();
    let mut statuses = Vec::new();
    for nth in 0..6 {
        let passed = [("x-forwarded-for", format!("10.0.0.{nth}"))];
        let passed: Vec<_> = passed.iter().map(|(name, value)| (*name, value.as_str())).collect();
        statuses.push(request(at, "GET", "/v1/sales/nothing", &passed, b"").await.status);
    }
    assert_eq!(statuses, [404, 404, 404, 404, 404, 429]);
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(tokio::net::TcpStream::connect(at).await.unwrap());
    }
    let refused = async || send_raw(at, b"GET / HTTP/1.1\r\nhost: t\r\n\r\n", Duration::from_secs(10)).await;
    until("the fourth connection is closed", Duration::from_secs(10), async || {
        refused().await.filter(|answer| answer.is_empty())
    })
    .await;
    drop(open);
    until("there is room again", Duration::from_secs(10), async || {
        refused().await.filter(|answer| answer.starts_with("HTTP/1.1 4"))
    })
    .await;
    front.stop().await;
}

/// A stranger behind the same address as buyers sends forged tokens. Buyers whose tokens are known go on, and so does every
/// other address.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_an_address_that_forges_are_not_all_verified() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("front.address_header=x-forwarded-for").set("front.suspected_rate=3/1000s");
    let front = world.running_as(Role::Front).await;
    let (at, sale) = (front.buyers.unwrap(), sale(&world.name, 9, 1));
    world.open_sale(&front.parts, &sale).await;
    let (shop, stranger) = (
        Signer::new(world.config().auth()),
        Signer::new(AuthSettings::with_secret("a secret that the front does not know, and long enough")),
    );
    let path = format!("/v1/sales/{}/orders", sale.id);
    // Made once: a token that is made in another second is another token.
    let bearer =
        |signer: &Signer, user: &str| format!("Bearer {}", signer.mint(&user.parse().unwrap(), None, 600));
    let (ada, bob, eve) = (bearer(&shop, "ada"), bearer(&shop, "bob"), bearer(&stranger, "eve"));
    let post = async |token: &str, address: &str| {
        let headers = [("authorization", token), ("x-forwarded-for", address)];
        request(at, "POST", &path, &headers, b"").await
    };
    let shared = "203.0.113.9";
    assert_eq!(post(&ada, shared).await.status, 202);
    // Ten make the address suspected, and three more are verified.
    for nth in 0..13 {
        assert_eq!(post(&eve, shared).await.status, 401, "{nth}");
    }
    let refused = post(&eve, shared).await;
    assert_eq!((refused.status, refused.code()), (429, "rate_limited"), "{}", refused.text);
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(post(&ada, shared).await.status, 202, "her token is known");
    assert_eq!(post(&bob, shared).await.status, 429);
    assert_eq!(post(&bob, "203.0.113.10").await.status, 202, "another address");
    assert_eq!(post(&bob, shared).await.status, 202, "and now this token is known");
    let open =
        request(at, "GET", &format!("/v1/sales/{}", sale.id), &[("x-forwarded-for", shared)], b"").await;
    assert_eq!(open.status, 200, "no token, nothing to verify: {}", open.text);
    front.stop().await;
}

/// Callbacks have no limit of requests, but those of a stranger who forges them are not all verified. The provider has another
/// address.
#[tokio::test(flavor = "multi_thread")]
async fn signatures_of_an_address_that_forges_are_not_all_verified() {
    let mut world = World::new(Database::Sqlite).await;
    world
        .set(PAYMENT_SECRETS)
        .set("front.address_header=x-forwarded-for")
        .set("front.address_rate=5/1000s")
        .set("front.suspected_rate=3/1000s");
    let front = world.running_as(Role::Front).await;
    let now = Millis::now().0 / 1000;
    let (sent, event) = (now.to_string(), r#"{"type":"payment.pondered"}"#);
    let call = async |signature: &str, address: &str| {
        let headers = [
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", sent.as_str()),
            ("webhook-signature", signature),
            ("x-forwarded-for", address),
        ];
        let path = "/v1/payments/callback/acme";
        request(front.buyers.unwrap(), "POST", path, &headers, event.as_bytes()).await
    };
    let (stranger, provider) = ("203.0.113.9", "203.0.113.10");
    // What needs no verifying is nothing to be suspected for.
    for nth in 0..20 {
        let path = "/v1/payments/callback/acme";
        let without =
            request(front.buyers.unwrap(), "POST", path, &[("x-forwarded-for", provider)], b"").await;
        assert_eq!(without.status, 401, "{nth}");
    }
    for nth in 0..13 {
        assert_eq!(call("v1,A", stranger).await.status, 401, "{nth}");
    }
    let refused = call("v1,A", stranger).await;
    assert_eq!((refused.status, refused.code()), (429, "rate_limited"), "{}", refused.text);
    assert_eq!(refused.headers["retry-after"], "1");
    let (_, secret) = PAYMENT_SECRETS.rsplit_once(' ').unwrap();
    let genuine = signature(secret, "msg_1", now, event).expect("signed");
    for nth in 0..9 {
        assert_eq!(call(&genuine, provider).await.status, 200, "{nth}");
    }
    // A provider whose secret was wrong for a while has a budget of its own.
    let corrected = "203.0.113.11";
    for nth in 0..10 {
        assert_eq!(call("v1,A", corrected).await.status, 401, "{nth}");
    }
    for expected in [200, 200, 200, 429] {
        assert_eq!(call(&genuine, corrected).await.status, expected);
    }
    // What is no callback has the limit of its address.
    let path = "/v1/payments/callback/acme";
    for expected in [405, 405, 405, 405, 405, 429] {
        let headers = [("x-forwarded-for", "203.0.113.12")];
        let answer = request(front.buyers.unwrap(), "GET", path, &headers, b"").await;
        assert_eq!(answer.status, expected, "{}", answer.text);
        assert!(["method_not_allowed", "rate_limited"].contains(&answer.code()), "{}", answer.text);
    }
    front.stop().await;
}

/// A stream is a connection that a proxy carries, so it is bounded by the client's address and not by the proxy's.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_of_one_address_leave_room_for_streams_of_others() {
    const OF_AN_ADDRESS: usize = 16;
    let mut world = World::new(Database::Sqlite).await;
    world.set("front.address_header=x-forwarded-for").set("front.event_streams=100");
    let front = world.running_as(Role::Front).await;
    let (at, sale) = (front.buyers.unwrap(), sale(&world.name, 9, 1));
    world.open_sale(&front.parts, &sale).await;
    let open = async |address: &str| Events::of_sale_for(address, at, &sale).await;
    let mut streams = Vec::new();
    for nth in 0..OF_AN_ADDRESS {
        let stream = open("203.0.113.9").await;
        assert_eq!(stream.status, 200, "{nth}");
        streams.push(stream);
    }
    assert_eq!(open("203.0.113.9").await.status, 503);
    assert_eq!(open("203.0.113.10").await.status, 200, "another address");
    streams.pop();
    until("there is room again", Duration::from_secs(30), async || {
        (open("203.0.113.9").await.status == 200).then_some(())
    })
    .await;
    front.stop().await;
}
