//! How long a replay retries while a server is away: long enough for a restart, but not for ever, because an
//! operator is waiting for the replay to end.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::link::Backoff;

/// From the first failure. An attempt that is under way then is still waited for.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Retry {
    first_failure: Option<Instant>,
    backoff: Backoff,
}

impl Retry {
    /// Call after each failed attempt. `false`: the time is up.
    pub(super) fn may_retry(&mut self) -> bool {
        self.first_failure.get_or_insert_with(Instant::now).elapsed() < TIMEOUT
    }

    /// Waits until the next attempt is due. `false`: `stop` was cancelled.
    pub(super) async fn pause(&mut self, stop: &CancellationToken) -> bool {
        stop.run_until_cancelled(tokio::time::sleep(self.backoff.delay())).await.is_some()
    }
}
