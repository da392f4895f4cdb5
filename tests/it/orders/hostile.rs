//! Bad input: each kind gets a clear answer, takes no unit, and causes no panic.

use std::time::Duration;

use doorbuster::domain::Millis;
use doorbuster::process::Running;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Buyer, Database, World, request, sale, send_raw};

/// A running front and worker with an open sale. Returns the path of its orders.
pub async fn with_open_sale(overrides: &[&str]) -> (World, Running, String) {
    let mut world = World::new(Database::Sqlite).await;
    for pair in overrides {
        world.set(pair);
    }
    let running = world.running().await;
    let sale = sale(&world.name, 10, 1);
    world.open_sale(&running.parts, &sale).await;
    let path = format!("/v1/sales/{}/orders", sale.id);
    (world, running, path)
}

async fn assert_still_sells(running: &Running, path: &str) {
    let answer = Buyer::of(running, "survivor").post(path, &[], "").await;
    assert!([200, 202].contains(&answer.status), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_ids_keys_and_paths_are_refused() {
    let (_world, running, path) = with_open_sale(&[]).await;
    let ada = Buyer::of(&running, "ada");
    for (sale, status) in [
        ("UPPER", 404),
        ("a%00b", 404),
        ("a%0d%0ab", 404),
        (&"a".repeat(41), 404),
        ("..", 404),
        ("%7Bx%7D", 404),
        ("%FF", 404),
    ] {
        let answer = ada.post(&format!("/v1/sales/{sale}/orders"), &[], "").await;
        assert_eq!(answer.status, status, "{sale}: {}", answer.text);
        assert_eq!(answer.headers["content-type"], "application/problem+json", "{sale}");
    }
    for key in ["", "a b", "k\u{e9}", &"k".repeat(65)] {
        let answer = ada.post(&path, &[("idempotency-key", key)], "").await;
        assert_eq!((answer.status, answer.code()), (400, "malformed"), "{key:?}: {}", answer.text);
    }
    let twice = ada.post(&path, &[("idempotency-key", "a"), ("idempotency-key", "b")], "").await;
    assert_eq!(twice.code(), "malformed");
    for wait in ["soon", "-1", "1e9"] {
        let answer = ada.post(&path, &[("prefer", &format!("wait={wait}"))], "").await;
        assert_eq!((answer.status, answer.code()), (400, "malformed"), "{wait}");
    }
    assert_eq!(ada.get(&format!("{path}/not-a-uuid")).await.code(), "order_not_found");
    for (method, path, code) in
        [("GET", "/v2/anything", "not_found"), ("DELETE", path.as_str(), "method_not_allowed")]
    {
        let answer = request(running.buyers.unwrap(), method, path, &[("x-request-id", "mine")], b"").await;
        assert_eq!((answer.code(), answer.json["request_id"].as_str()), (code, Some("mine")));
    }
    assert_still_sells(&running, &path).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_ten_megabytes_is_refused_without_being_read() {
    let (_world, running, path) = with_open_sale(&[]).await;
    let ada = Buyer::of(&running, "ada");
    let big = "x".repeat(10 * 1024 * 1024);
    let answer = ada.post(&path, &[], &big).await;
    assert_eq!((answer.status, answer.code()), (413, "body_too_large"), "{}", answer.text);
    let chunked = format!(
        "POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\nauthorization: Bearer {}\r\ntransfer-encoding: chunked\r\n\r\n2000\r\n{}\r\n0\r\n\r\n",
        ada.token,
        "x".repeat(8192)
    );
    let text = send_raw(running.buyers.unwrap(), chunked.as_bytes(), Duration::from_secs(20))
        .await
        .expect("an answer");
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    assert_still_sells(&running, &path).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_and_bodies_that_never_end_are_cut_off() {
    let (_world, running, path) =
        with_open_sale(&["front.header_within_ms=300", "front.body_within_ms=300"]).await;
    let ada = Buyer::of(&running, "ada");
    let within = Duration::from_secs(10);
    let unended = format!("POST {path} HTTP/1.1\r\nhost: t\r\nx-slow: ");
    assert!(
        send_raw(running.buyers.unwrap(), unended.as_bytes(), within).await.is_some(),
        "an unended header was kept open"
    );
    assert!(
        send_raw(running.buyers.unwrap(), b"", within).await.is_some(),
        "an idle connection was kept open"
    );
    let unsent = format!(
        "POST {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\nauthorization: Bearer {}\r\ncontent-length: 20\r\n\r\n{{",
        ada.token
    );
    let answer =
        send_raw(running.buyers.unwrap(), unsent.as_bytes(), within).await.expect("an answer in time");
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
    let endless = format!("GET / HTTP/1.1\r\nhost: t\r\nx: {}", "y".repeat(1_000_000));
    let answer =
        send_raw(running.buyers.unwrap(), endless.as_bytes(), within).await.expect("an answer in time");
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let garbage = send_raw(running.buyers.unwrap(), b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1", within).await;
    assert!(garbage.is_some_and(|answer| answer.is_empty() || answer.starts_with("HTTP/1.1 400")));
    assert_still_sells(&running, &path).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_of_16_kib_and_64_headers_is_read_and_a_longer_one_is_refused() {
    let (_world, running, path) = with_open_sale(&[]).await;
    let begin = format!("GET {path}/mine HTTP/1.1\r\nhost: t\r\nconnection: close\r\n");
    let of_bytes = |bytes: usize| {
        let rest = bytes - begin.len() - "x: \r\n\r\n".len();
        format!("{begin}x: {}\r\n\r\n", "y".repeat(rest))
    };
    let of_headers = |count: usize| format!("{begin}{}\r\n", "x: y\r\n".repeat(count - 2));
    for (head, status) in [
        (of_bytes(16 * 1024), 401),
        (of_bytes(16 * 1024 + 1), 431),
        (of_headers(64), 401),
        (of_headers(65), 431),
    ] {
        let answer = send_raw(running.buyers.unwrap(), head.as_bytes(), Duration::from_secs(10)).await;
        let answer = answer.expect("an answer in time");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{} bytes: {answer}", head.len());
    }
    running.stop().await;
}

/// A body may be small and cost much: in thousands of pieces, or with any number of zeros before the size of a piece.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_in_many_pieces_or_with_much_around_them_is_cut_off() {
    let (_world, running, path) = with_open_sale(&[]).await;
    let at = running.buyers.unwrap();
    let begin = format!(
        "POST /v1/payments/callback/nobody HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\
         transfer-encoding: chunked\r\nwebhook-id: msg_1\r\nwebhook-timestamp: {}\r\nwebhook-signature: v1,A\r\n\r\n",
        Millis::now().0 / 1000
    );
    for (pieces, status) in [(900, "401"), (2_000, "413")] {
        let body = "1\r\nx\r\n".repeat(pieces);
        let sent = format!("{begin}{body}0\r\n\r\n");
        let answer = send_raw(at, sent.as_bytes(), Duration::from_secs(20)).await.expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{pieces}: {answer}");
    }
    let zeros = format!("{begin}{}", "0".repeat(10_000_000));
    let answer = send_raw(at, zeros.as_bytes(), Duration::from_secs(20)).await.expect("an end");
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "not after body_within: {answer}");
    assert_still_sells(&running, &path).await;
    running.stop().await;
}

/// The beginning of a head may arrive with the request before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_bounded_on_a_connection_that_has_asked_before() {
    let (_world, running, _path) = with_open_sale(&[]).await;
    let mut stream = TcpStream::connect(running.buyers.unwrap()).await.unwrap();
    let first =
        format!("GET /nowhere HTTP/1.1\r\nhost: t\r\n\r\nGET /nowhere HTTP/1.1\r\nx: {}", "y".repeat(5_000));
    stream.write_all(first.as_bytes()).await.unwrap();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 404"));
    let rest = format!("{}\r\nhost: t\r\nconnection: close\r\n\r\n", "y".repeat(20_000));
    let _ = stream.write_all(rest.as_bytes()).await;
    let mut answers = String::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut answers))
        .await
        .expect("an end");
    assert!(!answers.contains("HTTP/1.1 404"), "a head of 25,000 bytes was answered: {answers}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_who_hangs_up_still_gets_their_order() {
    let (_world, running, path) = with_open_sale(&[]).await;
    let ada = Buyer::of(&running, "ada");
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\ncontent-length: 0\r\n\r\n",
        ada.token
    );
    let mut stream = TcpStream::connect(running.buyers.unwrap()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 1];
    // After the first byte of the answer the order is taken. Then the buyer hangs up.
    stream.read_exact(&mut first).await.unwrap();
    drop(stream);
    let mine = path.clone() + "/mine";
    crate::support::until("the order is confirmed", Duration::from_secs(20), async || {
        Some(ada.get(&mine).await).filter(|answer| answer.json["orders"][0]["status"] == "confirmed")
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_sale_is_not_created() {
    let (_world, running, _path) = with_open_sale(&[]).await;
    let admin = Buyer::operator(&running, doorbuster::front::Role::Admin);
    for (body, code) in [
        ("", "malformed"),
        (r#"{"sale_id":"x"}"#, "malformed"),
        (r#"{"sale_id":"x","items":[{"sku":"A B","stock":1}]}"#, "malformed"),
        (r#"{"sale_id":"x","items":[{"sku":"a","stock":1,"colour":"red"}]}"#, "malformed"),
        (r#"{"sale_id":"x","items":[{"sku":"a","stock":1}],"opens_at":"noon"}"#, "malformed"),
        (r#"{"sale_id":"X","items":[{"sku":"a","stock":1}]}"#, "invalid_sale"),
        (r#"{"sale_id":"x","items":[]}"#, "invalid_sale"),
        (r#"{"sale_id":"x","items":[{"sku":"a","stock":-1}]}"#, "invalid_sale"),
        (r#"{"sale_id":"x","items":[{"sku":"a","stock":1}],"limit_per_user":0}"#, "invalid_sale"),
        (r#"{"sale_id":"x","name":"a\nb","items":[{"sku":"a","stock":1}]}"#, "invalid_sale"),
        (
            r#"{"sale_id":"x","items":[{"sku":"a","stock":1}],"opens_at":"2030-01-02T00:00:00Z","closes_at":"2030-01-01T00:00:00Z"}"#,
            "invalid_sale",
        ),
    ] {
        let answer = admin.post("/v1/admin/sales", &[], body).await;
        assert_eq!(answer.code(), code, "{body}: {}", answer.text);
    }
    assert_eq!(admin.get("/v1/admin/sales/x").await.code(), "sale_not_found");
    running.stop().await;
}
