//! The crowd: many clicks over a bounded number of connections, each answer kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use super::afterwards::Bought;
use super::http::{Connection, Got};
use super::plan::Click;
use super::{Plan, Progress, TOKENS_LAST, Target};
use crate::domain::{OrderId, SaleId, UserId};

/// What one click was told in the end.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) user: UserId,
    /// `accepted`, `confirmed`, `repeat`, a code of the contract, or `unanswered`.
    pub(super) code: String,
    pub(super) order: Option<OrderId>,
    /// From the time the click was due to its last answer.
    pub(super) latency: Duration,
    pub(super) repeats: u32,
    pub(super) key: u32,
    /// At one of its tries it was not known whether the order was taken.
    pub(super) unknown: bool,
    /// Why nothing came back.
    pub(super) trouble: Option<String>,
}

impl Told {
    /// Was the buyer told that the order is taken?
    pub(super) fn has_order(&self) -> bool {
        matches!(self.code.as_str(), "accepted" | "confirmed" | "repeat")
    }

    pub(super) fn is_answered(&self) -> bool {
        let server_error = self.code.starts_with("http_5") || self.code == "internal";
        !server_error && !matches!(self.code.as_str(), "unanswered" | "outcome_unknown" | "gate_unavailable")
    }
}

#[derive(Default)]
struct Waiting {
    clicks: Mutex<VecDeque<(Click, Instant)>>,
}

/// Orders that were accepted go to `bought` at once.
pub(super) async fn send(
    target: &Target,
    plan: &Plan,
    sale: &SaleId,
    progress: &Progress,
    bought: Option<mpsc::UnboundedSender<Bought>>,
) -> Vec<Told> {
    let clicks = plan.clicks();
    progress.begin(clicks.len(), "clicks answered");
    let tokens: Arc<Vec<(UserId, String)>> = Arc::new(
        (0..plan.buyers)
            .filter_map(|buyer| UserId::parse(format!("buyer-{buyer:08}")).ok())
            .map(|user| {
                let token = format!("Bearer {}", target.tokens.mint(&user, None, TOKENS_LAST));
                (user, token)
            })
            .collect(),
    );
    let waiting = Arc::new(Waiting::default());
    let due = Arc::new(Semaphore::new(0));
    let path: Arc<str> = format!("/v1/sales/{sale}/orders").into();
    let buyers: Vec<_> = (0..plan.connections.min(clicks.len()))
        .map(|_| {
            let (waiting, due, tokens, path) = (waiting.clone(), due.clone(), tokens.clone(), path.clone());
            let (progress, address, plan, bought) =
                (progress.clone(), target.buyers, plan.clone(), bought.clone());
            tokio::spawn(async move {
                let mut connection = Connection::new(address);
                let mut told = Vec::new();
                // One permit for each click; closed after the last.
                while let Ok(permit) = due.acquire().await {
                    permit.forget();
                    let next = lock(&waiting.clicks).pop_front();
                    let Some((click, at)) = next else { continue };
                    let (user, token) = &tokens[click.buyer as usize];
                    let answer = buy(&mut connection, &path, user, token, &click, at, &plan).await;
                    // One who clicks again acts once.
                    if let (Some(bought), Some(order), 0, true) =
                        (&bought, answer.order, click.key, answer.has_order())
                    {
                        let _ = bought.send(Bought { order, bearer: token.clone() });
                    }
                    told.push(answer);
                    progress.step();
                }
                told
            })
        })
        .collect();
    let start = Instant::now();
    for click in clicks {
        let at = start + click.at;
        tokio::time::sleep_until(at).await;
        lock(&waiting.clicks).push_back((click, at));
        due.add_permits(1);
    }
    while !lock(&waiting.clicks).is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    due.close();
    let mut told = Vec::new();
    for buyer in buyers {
        told.extend(buyer.await.unwrap_or_default());
    }
    progress.end();
    told
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Clicks once, and again with the same key for as long as the outcome is unknown.
pub(super) async fn buy(
    connection: &mut Connection,
    path: &str,
    user: &UserId,
    token: &str,
    click: &Click,
    due: Instant,
    plan: &Plan,
) -> Told {
    let key = format!("click-{}", click.key);
    let headers = [("authorization", token), ("idempotency-key", key.as_str())];
    let (mut repeats, mut unknown) = (0, false);
    let until = Instant::now() + plan.repeat_for;
    loop {
        let got = connection.post(path, &headers, Bytes::new()).await;
        let (code, order, trouble) = read(got);
        let again = matches!(
            code.as_str(),
            "unanswered" | "outcome_unknown" | "gate_unavailable" | "overloaded" | "status_unavailable"
        );
        unknown |= !matches!(code.as_str(), "gate_unavailable" | "overloaded") && again;
        if again && Instant::now() < until {
            repeats += 1;
            tokio::time::sleep(Duration::from_millis(200 * u64::from(repeats.min(5)))).await;
            continue;
        }
        let latency = due.elapsed();
        let (user, key) = (user.clone(), click.key);
        return Told { user, code, order, latency, repeats, key, unknown, trouble };
    }
}

fn read(got: Got) -> (String, Option<OrderId>, Option<String>) {
    let (status, body) = match got {
        Ok(got) => got,
        Err(trouble) => return ("unanswered".into(), None, Some(trouble)),
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
    (code, order, None)
}
