//! One drill from its sale to its verdict.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::admin::Admin;
use super::error::DrillError;
use super::final_books::FinalBooks;
use super::plan::Plan;
use super::progress::Progress;
use super::report::Report;
use super::target::Target;
use super::verdict::Verdict;
use super::{crowd, follow_up, operator, sale};
use crate::domain::OrderId;
use crate::rehearsal::judge::{Intent, now_ms};

/// Creates a sale, sends the crowd, waits until every order has ended, closes the sale, and compares. When `stop` is
/// cancelled, closes the sale and returns [`DrillError::Interrupted`].
pub async fn run(
    target: &Target,
    plan: &Plan,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<Report, DrillError> {
    Ok(run_during(target, plan, progress, stop, async {}).await?.report)
}

/// The report of a drill, and when its phases ended.
pub struct DrillRun {
    /// The findings.
    pub report: Report,
    /// The time when the last buyer had an answer and `meanwhile` had ended.
    pub answered_at: Instant,
    /// The time when every order had ended, or `plan.settle_within` had passed.
    pub at_rest: Instant,
    /// From when until when the drill closed its sale, in milliseconds since 1970.
    pub closed_ms: (i64, i64),
    /// What buyers meant to do with their orders.
    pub intents: Vec<(OrderId, Intent)>,
}

/// Like [`run`], with `meanwhile` running at the same time. The sale is closed when the last buyer has an answer; the books
/// are read when `meanwhile` has ended too.
pub async fn run_during(
    target: &Target,
    plan: &Plan,
    progress: &Progress,
    stop: &CancellationToken,
    meanwhile: impl Future<Output = ()>,
) -> Result<DrillRun, DrillError> {
    let admin = Admin::of(target)?;
    let sale = sale::open(&admin, plan, plan.under_fire).await?;
    let (send, bought) = tokio::sync::mpsc::unbounded_channel();
    let over = CancellationToken::new();
    let crowd = async {
        let send = plan.follow_up.is_some().then_some(send);
        let results = crowd::send(target, plan, &sale, progress, send).await;
        over.cancel();
        results
    };
    let follow_ups = async {
        match &plan.follow_up {
            Some(follow_up) => follow_up::act(target, follow_up, &sale, bought, Arc::new(|| {})).await,
            None => Vec::new(),
        }
    };
    let steering = async {
        match plan.steering {
            Some(steering) => operator::steer(&admin, &sale, steering, || over.is_cancelled()).await,
            None => Vec::new(),
        }
    };
    let buyers = async {
        let answered = tokio::join!(crowd, follow_ups, steering);
        let from = now_ms();
        sale::close(&admin, &sale, plan, true).await?;
        Ok::<_, DrillError>((answered, (from, now_ms())))
    };
    let all = async { tokio::join!(buyers, meanwhile) };
    let Some((answered, ())) = stop.run_until_cancelled(all).await else {
        sale::close(&admin, &sale, plan, false).await?;
        return Err(DrillError::Interrupted);
    };
    let ((results, outcomes, acts), closed_ms) = answered?;
    let answered_at = Instant::now();
    progress.say("waiting until every order has ended");
    let books = FinalBooks::at_rest(&admin, &sale, plan).await?;
    let at_rest = books.read_at();
    let verdict = Verdict::reach(&results, &outcomes, &acts, &books, plan);
    let intents = outcomes.iter().map(|outcome| (outcome.order, outcome.intent)).collect();
    let report = Report::new(plan, &sale, &results, acts, verdict);
    Ok(DrillRun { report, answered_at, at_rest, closed_ms, intents })
}
