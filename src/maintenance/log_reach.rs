//! Measures how far back the order log reaches, and how old the last backup is. A database from a backup that is older
//! than the log's beginning cannot be brought up to date, so an alert has to come before that.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::MaintenanceError;
use super::schedule::ScheduledTask;
use crate::domain::Millis;
use crate::queue::OrderLog;
use crate::recovery::log_begins_at;
use crate::store::Store;

const EVERY: Duration = Duration::from_secs(30);

/// The task that measures. The broker keeps an entry for `kept` at most.
pub fn log_reach(log: &OrderLog, store: &Store, kept: Duration) -> ScheduledTask {
    let (log, store) = (log.clone(), store.clone());
    let work = move || -> BoxFuture<'static, Result<usize, MaintenanceError>> {
        let (log, store) = (log.clone(), store.clone());
        Box::pin(async move { measure(&log, &store, kept).await.map(|()| 0) })
    };
    ScheduledTask { name: "measure the order log", every: EVERY, work: Box::new(work) }
}

/// The gauges are points in time: a front that no longer measures shows no older state than it knew.
async fn measure(log: &OrderLog, store: &Store, kept: Duration) -> Result<(), MaintenanceError> {
    // Reading would wait for the broker, and hold up everything else that is due.
    if !log.is_up() {
        return Ok(());
    }
    let begins_at = log_begins_at(log, store).await?;
    metrics::gauge!("doorbuster_order_log_begins_timestamp_seconds").set(begins_at.map_or(0.0, seconds));
    metrics::gauge!("doorbuster_order_log_kept_seconds").set(kept.as_secs_f64());
    if let Some(at) = store.last_backup().await? {
        metrics::gauge!("doorbuster_database_backup_timestamp_seconds").set(seconds(at));
    }
    Ok(())
}

fn seconds(at: Millis) -> f64 {
    at.0 as f64 / 1000.0
}
