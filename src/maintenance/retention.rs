//! Names that are to be erased, and old sales that are to be purged. Both may read every order, so they are no part of the
//! rounds: there a turn is short, and a longer one would be cut and begun from the start each time.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::MaintenanceError;
use super::leader::{alone, work_alone};
use crate::control::Control;
use crate::lease::Leases;

const SCOPE: &str = "_retention";

/// How often to look for names that are due.
const EVERY: Duration = Duration::from_secs(60);

/// How often to look for sales that are old enough.
const PURGES_EVERY: Duration = Duration::from_secs(3_600);

/// After the start, when servers are reached.
const FIRST_AFTER: Duration = Duration::from_secs(1);

/// Erases and purges, on one front at a time.
pub struct Retention {
    /// Erases and purges.
    pub control: Control,
    /// Lets only one front work.
    pub leases: Leases,
    /// Archived sales are purged this long after their last change, or never.
    pub purge_after: Option<Duration>,
}

impl Retention {
    /// Runs until `stop`. Errors are logged; what they leave is done at the next look.
    pub async fn run(self, stop: CancellationToken) {
        let (mut pause, mut purged_at) = (FIRST_AFTER, None);
        while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
            pause = EVERY;
            let work = alone(&self.leases, SCOPE, work_alone(), self.look(&mut purged_at));
            if let Some(Err(error)) = stop.run_until_cancelled(work).await {
                tracing::warn!(%error, "old sales are left for the next look");
            }
        }
    }

    async fn look(&self, purged_at: &mut Option<Instant>) -> Result<(), MaintenanceError> {
        match self.control.finish_erasures().await {
            Ok(0) => {}
            Ok(erased) => tracing::info!(erased, "names were erased as asked"),
            Err(error) => tracing::warn!(%error, "names that are to be erased are left for the next look"),
        }
        if let Some(after) = self.purge_after
            && purged_at.is_none_or(|at: Instant| at.elapsed() >= PURGES_EVERY)
        {
            let purged = self.control.purge_old_sales(after).await?;
            *purged_at = Some(Instant::now());
            if purged > 0 {
                tracing::info!(purged, "old sales were purged");
            }
        }
        Ok(())
    }
}
