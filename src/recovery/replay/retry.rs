//! How long a replay waits for a server that is away: long enough for it to be started again, and not
//! for ever, since somebody waits for its end.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{ReplayError, Work};
use crate::gate::GateError;
use crate::link::Backoff;
use crate::store::StoreError;

/// From the first failure on. What is under way by then is waited for.
const WAITS: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Retry {
    /// When the first try had failed.
    since: Option<Instant>,
    backoff: Backoff,
}

impl ReplayError {
    /// Does it pass by itself, when a server is there again?
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Queue(_) | Self::Lease(_) => true,
            Self::Store(error) => matches!(error, StoreError::Away(_) | StoreError::LeaseEnded),
            Self::Gate(error) => {
                matches!(error, GateError::Unavailable(_) | GateError::Late(_) | GateError::Full(_))
            }
            _ => false,
        }
    }
}

impl Retry {
    /// ReplayRequest after each try: is there another one?
    pub(super) fn lasts(&mut self) -> bool {
        self.since.get_or_insert_with(Instant::now).elapsed() < WAITS
    }

    /// Until the next try. `false`: it is time to stop.
    pub(super) async fn pause(&mut self, stop: &CancellationToken) -> bool {
        stop.run_until_cancelled(tokio::time::sleep(self.backoff.delay())).await.is_some()
    }
}

impl Work<'_> {
    /// Tries again while a server is away: what was begun is to be brought to its end.
    /// `None`: it is time to stop.
    pub(super) async fn patiently<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, ReplayError>,
    ) -> Result<Option<T>, ReplayError> {
        let mut patience = Retry::default();
        loop {
            match attempt().await {
                Err(error) if error.passes() && patience.lasts() => {
                    (self.progress.say)(&format!("waits: {error}"));
                }
                attempted => return attempted.map(Some),
            }
            if !patience.pause(&self.stop).await {
                return Ok(None);
            }
        }
    }
}
