//! Server-sent events, as a client reads them.

use std::net::SocketAddr;
use std::time::Duration;

use doorbuster::domain::Sale;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::Buyer;

/// A stream that is read line by line, without a library in between.
pub struct Events {
    lines: Lines<BufReader<OwnedReadHalf>>,
    pub status: u16,
    _write: OwnedWriteHalf,
}

/// One event with data.
#[derive(Debug)]
pub struct Event {
    pub id: String,
    pub data: serde_json::Value,
}

impl Events {
    pub async fn of_sale(at: SocketAddr, sale: &Sale, last: Option<&str>) -> Self {
        Self::open(at, &format!("/v1/sales/{}/events", sale.id), last, "").await
    }

    /// For a client whose proxy passes on this address.
    pub async fn of_sale_for(client: &str, at: SocketAddr, sale: &Sale) -> Self {
        let passed = format!("x-forwarded-for: {client}\r\n");
        Self::open(at, &format!("/v1/sales/{}/events", sale.id), None, &passed).await
    }

    pub async fn of_order(buyer: &Buyer, sale: &Sale, order: &str, last: Option<&str>) -> Self {
        let token = format!("authorization: Bearer {}\r\n", buyer.token);
        Self::open(buyer.at, &format!("/v1/sales/{}/orders/{order}/events", sale.id), last, &token).await
    }

    pub async fn of_operator(operator: &Buyer, sale: &Sale) -> Self {
        let token = format!("authorization: Bearer {}\r\n", operator.token);
        Self::open(operator.at, &format!("/v1/admin/sales/{}/events", sale.id), None, &token).await
    }

    async fn open(at: SocketAddr, path: &str, last: Option<&str>, header: &str) -> Self {
        let (read, mut write) = TcpStream::connect(at).await.unwrap().into_split();
        let last = last.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        let head = format!("GET {path} HTTP/1.1\r\nhost: test\r\n{header}{last}\r\n");
        write.write_all(head.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(read).lines();
        let status = lines.next_line().await.unwrap().expect("a status line");
        let status = status.split(' ').nth(1).expect("a status").parse().expect("a number");
        while !lines.next_line().await.unwrap().expect("the head").is_empty() {}
        Self { lines, status, _write: write }
    }

    /// The next line that is no length of a chunk; `None` when the stream has ended.
    pub async fn line(&mut self, within: Duration) -> Option<String> {
        loop {
            let line = tokio::time::timeout(within, self.lines.next_line()).await.expect("a line in time");
            let line = line.unwrap_or(None)?;
            if !line.is_empty() && usize::from_str_radix(&line, 16).is_err() {
                return Some(line);
            }
        }
    }

    pub async fn next(&mut self) -> Event {
        self.next_or_end().await.expect("an event")
    }

    /// `None` when the stream has ended.
    pub async fn next_or_end(&mut self) -> Option<Event> {
        let within = Duration::from_secs(20);
        let mut id = String::new();
        loop {
            let line = self.line(within).await?;
            match line.split_once(": ") {
                Some(("id", value)) => id = value.to_owned(),
                Some(("data", value)) => {
                    // The fields may come in any order, but the data is written last.
                    return Some(Event { id, data: serde_json::from_str(value).expect("JSON") });
                }
                _ => {}
            }
        }
    }
}
