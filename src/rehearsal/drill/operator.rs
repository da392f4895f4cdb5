//! An operator who steers the sale while the crowd buys. Each act is asked for until it is known what
//! has become of it, with the same key.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::http::Admin;
use crate::domain::SaleId;

/// What the operator does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steering {
    /// Each act of live control once, one after the other.
    EachActOnce { pause: Duration },
    /// Restocks all the time, now more, now less.
    Restocks { every: Duration },
}

/// What the operator did, and what he was told.
#[derive(Debug, Clone, Serialize)]
pub struct Act {
    pub act: String,
    /// `done`, or a code of the contract.
    #[serde(rename = "told")]
    pub answer: String,
    /// Units that it added to the stock, or took away.
    pub units: i64,
}

/// How long an act is asked for again.
const PATIENCE: Duration = Duration::from_secs(120);

impl Steering {
    fn nth(self, nth: usize) -> Option<(&'static str, Value)> {
        let restock = |units: i64| ("restock", json!({ "sku": "unit", "units": units }));
        match self {
            Self::Restocks { .. } => Some(restock([40, -15, 25, -60][nth % 4])),
            Self::EachActOnce { .. } => {
                let hour = crate::domain::Millis::now().plus(Duration::from_secs(3_600));
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
            Self::Restocks { every } => every,
        }
    }
}

/// Steers until `done`, or until nothing is left to do.
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
        let key = format!("act-{}", acts.len());
        let answer = insist(admin, &format!("/v1/admin/sales/{sale}:{verb}"), &key, &body).await;
        let units = if answer == "done" { body["units"].as_i64().unwrap_or(0) } else { 0 };
        acts.push(Act { act: format!("{verb} {body}"), answer, units });
    }
    acts
}

async fn insist(admin: &Admin, path: &str, key: &str, body: &Value) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let (status, answer) = match admin.act(path, key, body).await {
            Ok(answered) => answered,
            Err(why) if Instant::now() >= until => return why,
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        if status.is_success() {
            return "done".into();
        }
        let code = answer["code"].as_str().unwrap_or("unknown").to_owned();
        if status.is_client_error() || Instant::now() >= until {
            return code;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
