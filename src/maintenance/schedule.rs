//! Tasks that a round runs at longer intervals: acts that were cut short, and expired sales.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::MaintenanceError;
use crate::control::{Control, ControlError};

/// A task with a separate interval.
pub struct ScheduledTask {
    /// For the log: a verb and its object.
    pub name: &'static str,
    /// Minimum time between two runs.
    pub every: Duration,
    /// Runs it once and returns how much was done. Must be idempotent: a run may be cut short and repeated.
    pub work: Box<dyn Fn() -> BoxFuture<'static, Result<usize, MaintenanceError>> + Send + Sync>,
}

/// The tasks that `control` runs.
pub fn schedule(control: &Control) -> Vec<ScheduledTask> {
    vec![
        task("finish acts that were cut short", 1, control, |control| {
            Box::pin(async move { control.finish_acts().await })
        }),
        task("close expired sales", 60, control, |control| {
            Box::pin(async move { control.close_expired_sales().await })
        }),
    ]
}

fn task(
    name: &'static str,
    seconds: u64,
    control: &Control,
    work: impl Fn(Control) -> BoxFuture<'static, Result<usize, ControlError>> + Send + Sync + 'static,
) -> ScheduledTask {
    let control = control.clone();
    let work = move || -> BoxFuture<'static, Result<usize, MaintenanceError>> {
        let done = work(control.clone());
        Box::pin(async move { Ok(done.await?) })
    };
    ScheduledTask { name, every: Duration::from_secs(seconds), work: Box::new(work) }
}
