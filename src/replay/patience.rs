//! How long a replay waits for a server that is away: long enough for it to be started again, and not
//! for ever, since somebody waits for its end.

use tokio_util::sync::CancellationToken;

use crate::link::Backoff;

/// Tries, the first included: some thirty seconds of waiting.
const TRIES: u32 = 20;

pub(super) struct Patience {
    left: u32,
    backoff: Backoff,
}

impl Default for Patience {
    fn default() -> Self {
        Self { left: TRIES, backoff: Backoff::default() }
    }
}

impl Patience {
    /// Is there another try after this one?
    pub(super) fn lasts(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }

    /// Until the next try. `false`: it is time to stop.
    pub(super) async fn pause(&mut self, stop: &CancellationToken) -> bool {
        stop.run_until_cancelled(tokio::time::sleep(self.backoff.delay())).await.is_some()
    }
}
