//! An operator who steers the sale while the crowd buys. Each act is repeated with the same key until its outcome is
//! known.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::admin::Admin;
use super::items::{FIRST_ITEM, sku};
use crate::domain::SaleId;
use crate::rehearsal::judge::now_ms;

/// The operator's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steering {
    /// Each act of live control once, one after the other.
    EachActOnce {
        /// The pause before each act.
        pause: Duration,
    },
    /// Restocks repeatedly, by positive and negative amounts.
    Restocks {
        /// The interval.
        every: Duration,
    },
    /// Repeatedly changes the terms, restocks the first two items, pauses and resumes.
    Everything {
        /// The interval.
        every: Duration,
    },
}

/// One act of the operator, and the final answer to it.
#[derive(Debug, Clone, Serialize)]
pub struct Act {
    /// The verb and the body of the request.
    pub act: String,
    /// `done`, a code of the contract, or why there was no answer.
    #[serde(rename = "told")]
    pub answer: String,
    /// The item that it restocks; empty if it restocks none.
    #[serde(skip)]
    pub sku: String,
    /// Units added to the item's stock, negative if removed.
    pub units: i64,
    /// The same if no answer says whether the act was carried out.
    #[serde(skip)]
    pub perhaps: i64,
    /// From the first request to the last answer, in milliseconds since 1970.
    #[serde(skip)]
    pub at_ms: (i64, i64),
}

/// How long an act is repeated for an answer.
const REPEAT_FOR: Duration = Duration::from_secs(120);

impl Steering {
    /// The verb and body of the nth act; `None` after the last.
    fn nth(self, nth: usize) -> Option<(&'static str, Value)> {
        let restock_of = |sku: &str, units: i64| ("restock", json!({ "sku": sku, "units": units }));
        let restock = |units: i64| restock_of(FIRST_ITEM, units);
        let hour = crate::domain::Millis::now().plus(Duration::from_secs(3_600));
        match self {
            Self::Restocks { .. } => Some(restock([40, -15, 25, -60][nth % 4])),
            Self::Everything { .. } => {
                // Nobody reaches the rates.
                let acts = [
                    (
                        "change",
                        json!({ "closes_at": hour, "user_rate": "1000/1s", "sale_rate": "1000000/1s" }),
                    ),
                    restock(30),
                    ("pause", json!({ "message": "one moment, please" })),
                    ("resume", json!({})),
                    (
                        "change",
                        json!({ "closes_at": null, "message": null, "user_rate": null, "sale_rate": null }),
                    ),
                    restock(-20),
                    restock_of(&sku(1), 10),
                ];
                let nth = nth % acts.len();
                acts.into_iter().nth(nth)
            }
            Self::EachActOnce { .. } => {
                let acts = [
                    ("pause", json!({ "message": "one moment, please" })),
                    ("resume", json!({})),
                    restock(200),
                    ("change", json!({ "closes_at": hour })),
                    ("change", json!({ "user_rate": "100/1s", "sale_rate": "100000/1s" })),
                    restock(-150),
                    ("change", json!({ "limit_per_user": 2 })),
                    ("change", json!({ "limit_per_user": 1, "closes_at": null })),
                    ("change", json!({ "user_rate": null, "sale_rate": null, "message": null })),
                ];
                acts.into_iter().nth(nth)
            }
        }
    }

    fn pause(self) -> Duration {
        match self {
            Self::EachActOnce { pause } => pause,
            Self::Restocks { every } | Self::Everything { every } => every,
        }
    }
}

/// Acts until `done` returns true or no act is left, and returns the acts with their answers. Resumes a sale that is paused
/// then.
pub(super) async fn steer(
    admin: &Admin,
    sale: &SaleId,
    steering: Steering,
    done: impl Fn() -> bool,
) -> Vec<Act> {
    let mut acts = Vec::new();
    while !done() {
        tokio::time::sleep(steering.pause()).await;
        let Some((verb, body)) = steering.nth(acts.len()) else { break };
        acts.push(act(admin, sale, acts.len(), (verb, body)).await);
    }
    if acts.last().is_some_and(|last| last.act.starts_with("pause")) {
        acts.push(act(admin, sale, acts.len(), ("resume", json!({}))).await);
    }
    acts
}

/// Carries out the nth act.
async fn act(admin: &Admin, sale: &SaleId, nth: usize, (verb, body): (&str, Value)) -> Act {
    let (key, from) = (format!("act-{nth}"), now_ms());
    let (answer, is_final) = insist(admin, &format!("/v1/admin/sales/{sale}:{verb}"), &key, &body).await;
    let asked = body["units"].as_i64().unwrap_or(0);
    let units = if answer == "done" { asked } else { 0 };
    let perhaps = if is_final { 0 } else { asked };
    let sku = body["sku"].as_str().unwrap_or_default().to_owned();
    Act { act: format!("{verb} {body}"), answer, sku, units, perhaps, at_ms: (from, now_ms() + 1) }
}

/// Repeats one act until its outcome is known, and returns its answer and whether it is known.
pub(super) async fn insist(admin: &Admin, path: &str, key: &str, body: &Value) -> (String, bool) {
    let until = Instant::now() + REPEAT_FOR;
    loop {
        let (status, answer) = match admin.act(path, key, body).await {
            Ok(answer) => answer,
            Err(error) if Instant::now() >= until => return (error.to_string(), false),
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        if status.is_success() {
            return ("done".into(), true);
        }
        let code = answer["code"].as_str().unwrap_or("unknown").to_owned();
        if status.is_client_error() || Instant::now() >= until {
            return (code, status.is_client_error());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
