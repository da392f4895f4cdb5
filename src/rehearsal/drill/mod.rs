//! Rehearsed load: a crowd of buyers over HTTP, and a verdict from the books.
//!
//! The crowd is open-loop: each click has its time, whether or not earlier ones were answered, and
//! latency counts from that time. A drill knows Doorbuster only by its HTTP contract, so it judges
//! a stack on this machine and one elsewhere alike.

mod afterwards;
mod crowd;
mod http;
mod operator;
mod plan;
mod progress;
mod report;
mod returns;
mod verdict;

use std::net::SocketAddr;

use aws_lc_rs::hmac;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::{Item, LatePayment, SaleId, Terms, UserId};
use crate::front::{Role, Tokens};

pub use operator::{Act, Steering};
pub use plan::{Arrival, Clicks, FollowUp, Plan, Preset};
pub use progress::Progress;
pub use report::Report;
pub use returns::{Returns, run as run_returns};
pub use verdict::Verdict;

/// Where the drill takes target.
pub struct Target {
    pub buyers: SocketAddr,
    pub operations: SocketAddr,
    /// Signs the buyers' and the operator's tokens with the stack's own secret.
    pub tokens: Tokens,
    /// Signs the callbacks of the payment provider `drill`; empty where none is set up.
    pub payment_secret: String,
}

const TOKENS_LAST: u32 = 3600;

/// The secret of the payment provider `drill`, made of a stack's own secret, which it does not tell.
pub fn payment_secret(secret: &str) -> String {
    use base64::Engine as _;
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, b"the drill's payment provider");
    format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(tag))
}

/// Why no verdict could be reached.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    #[error("{call}: {why}")]
    Call { call: String, why: String },
    #[error("the drill was interrupted")]
    Interrupted,
}

/// Creates a sale, sends the crowd, waits until every order has ended, closes the sale, compares.
/// Interrupted, it closes the sale and says so.
pub async fn run(
    target: &Target,
    plan: &Plan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<Report, DrillError> {
    Ok(run_during(target, plan, progress, stop, async {}).await?.report)
}

/// What a drill left in the books.
pub struct DrillRun {
    pub report: Report,
    /// When the last buyer had been told, and `meanwhile` had ended.
    pub answered_at: Instant,
    /// When every order had ended, or the patience had.
    pub at_rest: Instant,
}

/// The same while something else happens; the books are read after both have ended.
pub async fn run_during(
    target: &Target,
    plan: &Plan,
    progress: &Progress,
    stop: &CancellationToken,
    meanwhile: impl Future<Output = ()>,
) -> Result<DrillRun, DrillError> {
    let admin = administer(target)?;
    let sale = open_sale(&admin, plan).await?;
    let (send, bought) = tokio::sync::mpsc::unbounded_channel();
    let over = CancellationToken::new();
    let crowd = async {
        let send = plan.follow_up.is_some().then_some(send);
        let told = crowd::send(target, plan, &sale, progress, send).await;
        over.cancel();
        told
    };
    let afterwards = async {
        match &plan.follow_up {
            Some(follow_up) => {
                afterwards::act(target, follow_up, &sale, bought, std::sync::Arc::new(|| {})).await
            }
            None => Vec::new(),
        }
    };
    let steering = async {
        match plan.steering {
            Some(steering) => operator::steer(&admin, &sale, steering, || over.is_cancelled()).await,
            None => Vec::new(),
        }
    };
    let all = async { tokio::join!(crowd, meanwhile, afterwards, steering) };
    let told = stop.run_until_cancelled(all).await;
    let told_at = Instant::now();
    shut(&admin, &sale, plan, told.is_some()).await?;
    let (told, (), outcomes, acts) = told.ok_or(DrillError::Interrupted)?;
    progress.say("waiting until every order has ended");
    let books = verdict::Books::at_rest(&admin, &sale, plan).await?;
    let at_rest = books.read_at();
    let verdict = Verdict::reach(&told, &outcomes, &acts, &books, plan);
    Ok(DrillRun { report: Report::new(plan, &sale, &told, acts, verdict), answered_at: told_at, at_rest })
}

fn administer(target: &Target) -> Result<http::Admin, DrillError> {
    let operator = UserId::parse("drill")
        .map_err(|error| DrillError::Call { call: "making a token".into(), why: error.to_string() })?;
    Ok(http::Admin::new(target.operations, target.tokens.mint(&operator, Some(Role::Admin), TOKENS_LAST)))
}

/// Closed before the books are read: what is admitted afterwards would not be judged.
async fn shut(admin: &http::Admin, sale: &SaleId, plan: &Plan, patient: bool) -> Result<(), DrillError> {
    let until = Instant::now() + plan.settle_within;
    while let Err(error) = admin.post(&format!("/v1/admin/sales/{sale}:close"), None).await {
        if !patient || Instant::now() > until {
            return Err(error);
        }
        // A server that is just coming back.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Returns when a front says that it is ready, or why it is not.
pub async fn until_ready(target: &Target, within: std::time::Duration) -> Result<(), String> {
    let until = Instant::now() + within;
    loop {
        let got = http::Connection::new(target.operations).get("/readyz").await;
        let why = match got {
            Ok((_, body)) => String::from_utf8_lossy(&body).into_owned(),
            Err(why) => why,
        };
        let ready =
            serde_json::from_str::<serde_json::Value>(&why).is_ok_and(|said| said["status"] == "ready");
        if ready {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(why);
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

async fn open_sale(admin: &http::Admin, plan: &Plan) -> Result<SaleId, DrillError> {
    let id = format!("{}-{:08x}", plan.name, rand::random::<u32>());
    let call = |error: crate::domain::Invalid| DrillError::Call {
        call: "naming the sale".into(),
        why: error.to_string(),
    };
    let sale: SaleId = id.parse().map_err(call)?;
    let item = Item { sku: "unit".parse().map_err(call)?, stock: plan.units, limit_per_user: None };
    let body = serde_json::json!({
        "sale_id": sale,
        "name": format!("Drill: {}", plan.name),
        "limit_per_user": 1,
        "rules": rules(plan),
        "items": [item],
    });
    admin.post("/v1/admin/sales", Some(body)).await?;
    admin.post(&format!("/v1/admin/sales/{sale}:open"), None).await?;
    Ok(sale)
}

fn rules(plan: &Plan) -> Terms {
    match &plan.follow_up {
        None => Terms::default(),
        Some(follow_up) => Terms {
            pay_within_s: Some(follow_up.pay_within_s),
            rebuy: follow_up.rebuy,
            late_payment: if follow_up.rebuy { LatePayment::Retake } else { LatePayment::Refund },
            ..Terms::default()
        },
    }
}
