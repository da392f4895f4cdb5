//! Rehearsed load: a crowd of buyers over HTTP, and a verdict from the books.
//!
//! The crowd is open-loop: each click has its time, whether or not earlier ones were answered, and
//! latency counts from that time. A drill knows Doorbuster only by its HTTP contract, so it judges
//! a stack on this machine and one elsewhere alike.

mod crowd;
mod http;
mod plan;
mod progress;
mod report;
mod verdict;

use std::net::SocketAddr;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::{Item, SaleId, UserId};
use crate::front::{Role, Tokens};

pub use plan::{Arrival, Clicks, Plan, Preset};
pub use progress::Progress;
pub use report::Report;
pub use verdict::Verdict;

/// Where the drill takes place.
pub struct Place {
    pub buyers: SocketAddr,
    pub operations: SocketAddr,
    /// Signs the buyers' and the operator's tokens with the stack's own secret.
    pub tokens: Tokens,
}

const TOKENS_LAST: u32 = 3600;

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
    place: &Place,
    plan: &Plan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<Report, DrillError> {
    Ok(run_during(place, plan, progress, stop, async {}).await?.report)
}

/// What a drill left in the books.
pub struct Ran {
    pub report: Report,
    /// When the last buyer had been told, and `meanwhile` had ended.
    pub told: Instant,
    /// When every order had ended, or the patience had.
    pub at_rest: Instant,
}

/// The same while something else happens; the books are read after both have ended.
pub async fn run_during(
    place: &Place,
    plan: &Plan,
    progress: &Progress,
    stop: &CancellationToken,
    meanwhile: impl Future<Output = ()>,
) -> Result<Ran, DrillError> {
    let operator = UserId::parse("drill")
        .map_err(|error| DrillError::Call { call: "making a token".into(), why: error.to_string() })?;
    let admin =
        http::Admin::new(place.operations, place.tokens.mint(&operator, Some(Role::Admin), TOKENS_LAST));
    let sale = open_sale(&admin, plan).await?;
    let crowd = async { tokio::join!(crowd::send(place, plan, &sale, progress), meanwhile).0 };
    let told = stop.run_until_cancelled(crowd).await;
    let told_at = Instant::now();
    // Closed first: what is admitted after the books were read would not be judged.
    let until = told_at + plan.settle_within;
    while let Err(error) = admin.post(&format!("/v1/admin/sales/{sale}:close"), None).await {
        if told.is_none() || Instant::now() > until {
            return Err(error);
        }
        // A server that is just coming back.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let told = told.ok_or(DrillError::Interrupted)?;
    progress.say("waiting until every order has ended");
    let books = verdict::Books::at_rest(&admin, &sale, plan.settle_within).await?;
    let at_rest = books.read_at();
    let verdict = Verdict::reach(&told, &books, plan);
    Ok(Ran { report: Report::new(plan, &sale, &told, verdict), told: told_at, at_rest })
}

/// Returns when a front says that it is ready, or why it is not.
pub async fn until_ready(place: &Place, within: std::time::Duration) -> Result<(), String> {
    let until = Instant::now() + within;
    loop {
        let got = http::Connection::new(place.operations).get("/readyz").await;
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
    let item = Item { sku: "unit".parse().map_err(call)?, stock: plan.units };
    let body = serde_json::json!({
        "sale_id": sale,
        "name": format!("Drill: {}", plan.name),
        "limit_per_user": 1,
        "items": [item],
    });
    admin.post("/v1/admin/sales", Some(body)).await?;
    admin.post(&format!("/v1/admin/sales/{sale}:open"), None).await?;
    Ok(sale)
}
