//! One click: an order request, repeated with the same key while its outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::time::Instant;

use super::http::{Answer, Connection, HttpError};
use super::items::Wanted;
use super::plan::Plan;
use super::target::Target;
use crate::domain::{OrderId, SaleId, UserId};
use crate::rehearsal::judge::{self, Ask, History, now_ms};

/// The final answer to one click.
#[derive(Debug, Clone)]
pub(super) struct ClickResult {
    pub(super) user: UserId,
    pub(super) wanted: Wanted,
    /// `accepted`, `confirmed`, `repeat`, a code of the contract, `http_` and a status, or `unanswered`.
    pub(super) code: String,
    pub(super) order: Option<OrderId>,
    /// From the time the click was due to its final answer.
    pub(super) latency: Duration,
    pub(super) repeats: u32,
    pub(super) key: u32,
    /// After at least one attempt, it was unknown whether the order had been taken.
    pub(super) unknown: bool,
    /// Why there was no answer.
    pub(super) trouble: Option<String>,
}

impl ClickResult {
    /// Whether the answer says that the order is taken.
    pub(super) fn has_order(&self) -> bool {
        matches!(self.code.as_str(), "accepted" | "confirmed" | "repeat")
    }

    /// Whether the click got a final answer.
    pub(super) fn is_answered(&self) -> bool {
        let server_error = self.code.starts_with("http_5") || self.code == "internal";
        !server_error && !matches!(self.code.as_str(), "unanswered" | "outcome_unknown" | "gate_unavailable")
    }
}

/// A connection through which buyers click, one after the other.
pub(super) struct Clicker {
    connection: Connection,
    path: Arc<str>,
    /// Whether the sale has several items, so that buyers have to name theirs.
    several: bool,
    repeat_for: Duration,
    under_fire: bool,
    history: History,
}

impl Clicker {
    pub(super) fn new(target: &Target, sale: &SaleId, plan: &Plan) -> Self {
        Self {
            connection: Connection::new(target.buyers),
            path: format!("/v1/sales/{sale}/orders").into(),
            several: plan.items > 1,
            repeat_for: plan.repeat_for,
            under_fire: plan.under_fire,
            history: target.history.clone(),
        }
    }

    /// The body of a request. An empty one asks for one unit of the only item.
    fn body(&self, wanted: &Wanted) -> Bytes {
        let Wanted { sku, quantity } = wanted;
        if !self.several && *quantity == 1 {
            return Bytes::new();
        }
        serde_json::json!({ "sku": sku, "quantity": quantity }).to_string().into()
    }

    /// Clicks once, and again with the same key while the outcome is unknown, for at most `plan.repeat_for`.
    pub(super) async fn click(
        &mut self,
        (user, bearer): (&UserId, &str),
        key: u32,
        wanted: Wanted,
        due: Instant,
    ) -> ClickResult {
        let body = self.body(&wanted);
        let key_text = format!("click-{key}");
        let headers = [("authorization", bearer), ("idempotency-key", key_text.as_str())];
        let (mut repeats, mut unknown) = (0, false);
        let until = Instant::now() + self.repeat_for;
        loop {
            let from = now_ms();
            let answer = self.connection.post(&self.path, &headers, body.clone()).await;
            let Heard { status, code, order, is_durable, trouble } = read(answer);
            if self.history.is_recorded() {
                let heard = judge::Answer {
                    status,
                    code: code.clone(),
                    order: order.map(OrderId::uuid),
                    new_order: None,
                    is_durable,
                };
                let (sku, quantity) = (wanted.sku.clone(), i64::from(wanted.quantity));
                let ask = Ask::Buy { key: key_text.clone(), sku, quantity };
                self.history.add(from, user.as_str(), ask, heard);
            }
            let again = matches!(
                code.as_str(),
                "unanswered" | "outcome_unknown" | "gate_unavailable" | "overloaded" | "status_unavailable"
            );
            unknown |= !matches!(code.as_str(), "gate_unavailable" | "overloaded") && again;
            let again = again || (self.under_fire && code == "sale_paused");
            if again && Instant::now() < until {
                repeats += 1;
                tokio::time::sleep(Duration::from_millis(200 * u64::from(repeats.min(5)))).await;
                continue;
            }
            let (user, latency) = (user.clone(), due.elapsed());
            return ClickResult { user, wanted, code, order, latency, repeats, key, unknown, trouble };
        }
    }
}

/// Whether an answer says that more than Redis holds the order.
pub(super) fn is_durable(body: &serde_json::Value) -> bool {
    let is_recorded = body["status"].as_str().is_some_and(|status| status != "accepted");
    body["durability"] == "broker" || is_recorded
}

/// What one attempt heard.
#[derive(Default)]
struct Heard {
    status: Option<u16>,
    code: String,
    /// The order, if the answer names one.
    order: Option<OrderId>,
    is_durable: bool,
    /// Why there was no answer.
    trouble: Option<String>,
}

fn read(answer: Result<Answer, HttpError>) -> Heard {
    let (status, body) = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let trouble = Some(error.to_string());
            return Heard { code: "unanswered".into(), trouble, ..Heard::default() };
        }
    };
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let order = body["order_id"].as_str().and_then(|id| id.parse().ok());
    let code = match (status, body["code"].as_str()) {
        (_, Some(code)) => code.to_owned(),
        (StatusCode::ACCEPTED, None) if body["history"].is_array() => "repeat".into(),
        (StatusCode::ACCEPTED, None) => "accepted".into(),
        (StatusCode::CREATED, None) => "confirmed".into(),
        (StatusCode::OK, None) => "repeat".into(),
        (status, None) => format!("http_{}", status.as_u16()),
    };
    Heard { status: Some(status.as_u16()), code, order, is_durable: is_durable(&body), trouble: None }
}
