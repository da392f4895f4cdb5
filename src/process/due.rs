//! What is due at times, besides what the upkeep knows of itself.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::config::Config;
use crate::control::Control;
use crate::life::Due;

pub(super) fn due(config: &Config, control: &Control) -> Vec<Due> {
    let mut due = vec![
        every(1, "acts that had died half way were finished", control, |control| {
            Box::pin(async move { control.finish_acts().await.map_err(|error| error.to_string()) })
        }),
        every(60, "sales whose time was over were closed", control, |control| {
            Box::pin(async move { control.close_what_is_over().await.map_err(|error| error.to_string()) })
        }),
    ];
    if let Some(after) = config.purge_after() {
        due.push(every(3_600, "old sales were purged", control, move |control| {
            Box::pin(async move { control.purge_what_is_old(after).await.map_err(|error| error.to_string()) })
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
) -> Due {
    let with = with.clone();
    Due { what, every: Duration::from_secs(seconds), work: Box::new(move || work(with.clone())) }
}
