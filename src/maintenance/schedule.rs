//! What is due at times, besides what the upkeep knows of itself.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::control::Control;

/// Something else that is due at times.
pub struct ScheduledTask {
    pub what: &'static str,
    pub every: Duration,
    /// Says how much was done.
    pub work: Box<dyn Fn() -> BoxFuture<'static, Result<usize, String>> + Send + Sync>,
}

pub fn schedule(control: &Control, purge_after: Option<Duration>) -> Vec<ScheduledTask> {
    let mut due = vec![
        every(1, "acts that had died half way were finished", control, |control| {
            Box::pin(async move { control.finish_acts().await.map_err(|error| error.to_string()) })
        }),
        every(60, "sales whose time was over were closed", control, |control| {
            Box::pin(async move { control.close_expired_sales().await.map_err(|error| error.to_string()) })
        }),
    ];
    if let Some(after) = purge_after {
        due.push(every(3_600, "old sales were purged", control, move |control| {
            Box::pin(async move { control.purge_old_sales(after).await.map_err(|error| error.to_string()) })
        }));
    }
    due
}

/// `what` is said of as many as the work says were done.
fn every<T: Clone + Send + Sync + 'static>(
    seconds: u64,
    what: &'static str,
    with: &T,
    work: impl Fn(T) -> BoxFuture<'static, Result<usize, String>> + Send + Sync + 'static,
) -> ScheduledTask {
    let with = with.clone();
    ScheduledTask { what, every: Duration::from_secs(seconds), work: Box::new(move || work(with.clone())) }
}
