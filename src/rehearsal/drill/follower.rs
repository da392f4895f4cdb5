//! A buyer who follows an order by events, and comes back with what they heard last when a stream breaks.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use super::click::is_durable;
use super::http::{self, HttpError};
use super::target::Target;
use crate::domain::{OrderId, SaleId, UserId};
use crate::rehearsal::judge::{Answer, Ask, History, now_ms};

/// One order in so many is followed, chosen by its id.
const ONE_IN: u8 = 16;

/// The longest wait before a stream is opened again.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How long each follower has for what is left of the last stream.
const LAST_WITHIN: Duration = Duration::from_secs(30);

/// The silence after which a stream counts as having shown everything. A busy machine may stand still for a second.
const SILENCE: Duration = Duration::from_secs(5);

/// Has the buyer follow the order, if calls are recorded and the order is one that is followed.
pub(super) fn follow(target: &Target, sale: &SaleId, order: OrderId, (user, bearer): (&UserId, &str)) {
    if !target.history.is_recorded() || !order.uuid().as_bytes()[14].is_multiple_of(ONE_IN) {
        return;
    }
    let follower = Follower {
        address: target.buyers,
        path: format!("/v1/sales/{sale}/orders/{order}/events"),
        user: user.to_string(),
        bearer: bearer.to_owned(),
        order: order.uuid(),
        history: target.history.clone(),
        heard: None,
    };
    target.followers.begin(order, |last| follower.run(last));
}

struct Follower {
    address: SocketAddr,
    path: String,
    user: String,
    bearer: String,
    order: uuid::Uuid,
    history: History,
    /// The id of the event that was heard last.
    heard: Option<String>,
}

impl Follower {
    async fn run(mut self, last: CancellationToken) {
        let mut wait = Duration::from_millis(50);
        while !last.is_cancelled() {
            let before = self.heard.clone();
            if let Some(Ok(true)) = last.run_until_cancelled(self.listen()).await {
                return;
            }
            if self.heard != before {
                wait = Duration::from_millis(50);
            }
            last.run_until_cancelled(tokio::time::sleep(wait)).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        // A stream whose order has not ended stays open.
        let heard_all = tokio::time::timeout(LAST_WITHIN, async {
            while !matches!(self.listen_briefly().await, Ok(true)) {
                tokio::time::sleep(wait).await;
            }
        })
        .await;
        if heard_all.is_err() || self.heard.is_none() {
            self.add(now_ms(), Answer { code: "unanswered".into(), ..Answer::default() });
        }
    }

    /// Hears what one stream shows. Returns whether it has shown everything that can ever happen.
    async fn listen(&mut self) -> Result<bool, HttpError> {
        self.hear(Duration::MAX).await
    }

    /// The same, and takes silence for the end.
    async fn listen_briefly(&mut self) -> Result<bool, HttpError> {
        self.hear(SILENCE).await
    }

    async fn hear(&mut self, longest_silence: Duration) -> Result<bool, HttpError> {
        let mut from = now_ms();
        let mut headers = vec![("authorization", self.bearer.clone())];
        headers.extend(self.heard.clone().map(|id| ("last-event-id", id)));
        let (status, mut body) = http::open(self.address, &self.path, &headers).await?;
        if status == StatusCode::NO_CONTENT {
            return Ok(true);
        }
        if status == StatusCode::NOT_FOUND {
            self.add(from, Answer { status: Some(404), code: "order_not_found".into(), ..Answer::default() });
        }
        if status != StatusCode::OK {
            return Ok(false);
        }
        let (mut text, mut id) = (Vec::new(), None);
        loop {
            let Ok(next) = tokio::time::timeout(longest_silence, next_chunk(&mut body)).await else {
                return Ok(true);
            };
            let Some(chunk) = next? else { return Ok(false) };
            text.extend_from_slice(&chunk);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                match line.trim_end().split_once(": ") {
                    Some(("id", value)) => id = Some(value.to_owned()),
                    Some(("data", data)) => {
                        let Some(shown) = shown(data) else { continue };
                        self.heard = id.take().or_else(|| self.heard.take());
                        self.add(from, shown);
                        from = now_ms();
                    }
                    _ => {}
                }
            }
        }
    }

    fn add(&self, from: i64, answer: Answer) {
        self.history.add(from, &self.user, Ask::Follow { order: self.order }, answer);
    }
}

/// The next part of a stream; `None` at its end.
async fn next_chunk(body: &mut Incoming) -> Result<Option<hyper::body::Bytes>, HttpError> {
    loop {
        let Some(frame) = body.frame().await else { return Ok(None) };
        if let Ok(data) = frame?.into_data() {
            return Ok(Some(data));
        }
    }
}

/// The state that an event shows; `None` if it shows no order.
fn shown(data: &str) -> Option<Answer> {
    let body: serde_json::Value = serde_json::from_str(data).ok()?;
    let code = body["status"].as_str()?.to_owned();
    Some(Answer { status: Some(200), code, is_durable: is_durable(&body), ..Answer::default() })
}
