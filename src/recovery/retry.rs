//! How long a replay or a rebuild retries while a server is unavailable: long enough for a restart, but not for ever,
//! because an operator is waiting.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::link::Backoff;

/// Counted from the first failure. An attempt in progress at that time may still finish.
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

    /// Waits until the next attempt. The caller may be dropped meanwhile.
    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(self.backoff.delay()).await;
    }

    /// Waits until the next attempt. `false`: `stop` was cancelled.
    pub(super) async fn pause(&mut self, stop: &CancellationToken) -> bool {
        stop.run_until_cancelled(self.wait()).await.is_some()
    }
}
