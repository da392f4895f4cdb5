//! Rebuilds every sale whose gate is frozen or lost, where the configuration says so.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::domain::{ActRequest, SaleId, SaleState};
use crate::recovery::{Rebuild, RebuildError};

/// How often gates are looked at, and after which time one that could not be rebuilt is tried again.
const EVERY: Duration = Duration::from_secs(2);
const AGAIN_AFTER: Duration = Duration::from_secs(60);

pub struct Rebuilder {
    pub rebuild: Rebuild,
}

impl Rebuilder {
    /// Rebuilds every sale whose gate is frozen or lost. Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut failed: HashMap<SaleId, Instant> = HashMap::new();
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            failed.retain(|_, at| at.elapsed() < AGAIN_AFTER);
            // What is under way when the process is asked to stop is begun again by the next.
            if stop.run_until_cancelled(self.rebuild_what_is_frozen(&mut failed)).await.is_none() {
                return;
            }
        }
    }

    async fn rebuild_what_is_frozen(&self, failed: &mut HashMap<SaleId, Instant>) {
        let Ok(rows) = self.rebuild.store.sales().await else { return };
        for row in rows {
            let id = row.sale.id;
            if row.state == SaleState::Draft || row.state.has_ended() || failed.contains_key(&id) {
                continue;
            }
            // With Redis away there is nothing to rebuild it in.
            let Ok(gate) = self.rebuild.gate.describe(&id).await else { continue };
            if !matches!(gate.map(|gate| gate.state), None | Some(SaleState::Frozen)) {
                continue;
            }
            match self.rebuild.run(&id, &ActRequest::by("schedule")).await {
                Ok(_) | Err(RebuildError::UnderWay(_)) => {}
                Err(error) => {
                    tracing::error!(sale = %id, %error, "a frozen sale could not be rebuilt; tried again in a minute");
                    failed.insert(id, Instant::now());
                }
            }
        }
    }
}
