//! A buyer with a plain socket, so that no client library hides a breach of the HTTP contract.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use doorbuster::front::{Role, Signer};
use doorbuster::process::Running;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::id;
use crate::contract::assert_fits;

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub text: String,
    pub json: serde_json::Value,
}

impl Answer {
    pub fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or_default()
    }

    pub fn order_id(&self) -> &str {
        self.json["order_id"].as_str().unwrap_or_default()
    }
}

/// A user or operator with a token, at one address.
#[derive(Clone)]
pub struct Buyer {
    pub at: SocketAddr,
    pub token: String,
}

impl Buyer {
    pub fn of(running: &Running, user: &str) -> Self {
        Self {
            at: running.buyers.expect("a front"),
            token: Signer::new(running.auth.clone()).mint(&id(user), None, 600),
        }
    }

    pub fn operator(running: &Running, role: Role) -> Self {
        Self {
            at: running.operations,
            token: Signer::new(running.auth.clone()).mint(&id("op"), Some(role), 600),
        }
    }

    pub fn with(at: SocketAddr, tokens: &Signer, user: &str, role: Option<Role>) -> Self {
        Self { at, token: tokens.mint(&id(user), role, 600) }
    }

    pub async fn get(&self, path: &str) -> Answer {
        request(self.at, "GET", path, &[("authorization", &format!("Bearer {}", self.token))], b"").await
    }

    /// `None` if no answer came back.
    pub async fn try_get(&self, path: &str) -> Option<Answer> {
        let bearer = format!("Bearer {}", self.token);
        try_request(self.at, "GET", path, &[("authorization", &bearer)], b"").await
    }

    pub async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.try_post(path, headers, body).await.expect("an answer")
    }

    /// `None` if no answer came back.
    pub async fn try_post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Option<Answer> {
        let bearer = format!("Bearer {}", self.token);
        let mut all = vec![("authorization", bearer.as_str())];
        all.extend_from_slice(headers);
        try_request(self.at, "POST", path, &all, body.as_bytes()).await
    }

    /// `None` if no answer came back.
    pub async fn try_buy(&self, sale: &str, key: &str) -> Option<Answer> {
        self.try_post(&format!("/v1/sales/{sale}/orders"), &[("idempotency-key", key)], "").await
    }

    pub async fn buy(&self, sale: &str, key: &str) -> Answer {
        self.post(&format!("/v1/sales/{sale}/orders"), &[("idempotency-key", key)], "").await
    }
}

pub async fn request(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    try_request(at, method, path, headers, body).await.expect("an answer")
}

/// `None` if no answer came back.
pub async fn try_request(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<Answer> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    if method == "POST" {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let bytes = [head.as_bytes(), b"\r\n", body].concat();
    let text = send_raw(at, &bytes, Duration::from_secs(60)).await?;
    let answer = Some(read(&text)).filter(|answer| answer.status != 0)?;
    assert_fits(method, path, &answer);
    Some(answer)
}

/// Sends bytes and reads until the server closes. `None` if it does not close in time or cannot be reached.
pub async fn send_raw(at: SocketAddr, bytes: &[u8], within: Duration) -> Option<String> {
    let work = async {
        let mut stream = TcpStream::connect(at).await.ok()?;
        // A server that refuses early may close before everything is sent.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        Some(String::from_utf8_lossy(&answer).into_owned())
    };
    tokio::time::timeout(within, work).await.ok().flatten()
}

fn read(text: &str) -> Answer {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok()).unwrap_or(0);
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let headers: BTreeMap<String, String> = headers;
    let is_chunked = headers.get("transfer-encoding").is_some_and(|encoding| encoding == "chunked");
    let text = if is_chunked { joined(body) } else { body.to_owned() };
    let json = serde_json::from_str(&text).unwrap_or_default();
    Answer { status, headers, text, json }
}

/// The chunks of a body, each with its length before it, in one.
fn joined(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap_or(0);
        let Some(chunk) = rest.get(..length).filter(|_| length > 0) else { break };
        whole.push_str(chunk);
        body = rest[length..].trim_start_matches("\r\n");
    }
    whole
}

/// Buys one unit for each of the users `user3`, `user4` and so on. Every order must be accepted.
pub async fn buy(
    running: &doorbuster::process::Running,
    sale: &doorbuster::domain::Sale,
    users: std::ops::Range<u32>,
) -> Vec<doorbuster::domain::OrderId> {
    let mut orders = Vec::new();
    for user in users {
        let answer = Buyer::of(running, &format!("user{user}")).buy(sale.id.as_str(), "k").await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        orders.push(super::id(answer.order_id()));
    }
    orders
}
