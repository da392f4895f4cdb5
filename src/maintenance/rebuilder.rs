//! Rebuilds every sale whose gate is frozen, and those that Redis has lost if the configuration allows it
//! (`gate.rebuild`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::domain::{ActRequest, SaleId, SaleState};
use crate::gate::GateError;
use crate::recovery::{Rebuild, RebuildError};
use crate::store::StoreError;

/// How often to check the gates.
const EVERY: Duration = Duration::from_secs(2);

/// How long to wait before a failed rebuild is retried, and one for which a server was away.
const RETRY_AFTER: Duration = Duration::from_secs(60);
const RETRY_OUTAGE_AFTER: Duration = Duration::from_secs(5);

/// Rebuilds gates without an operator. Needs no leader: a rebuild takes a lease on its sale.
pub struct Rebuilder {
    /// Rebuilds one sale.
    pub rebuild: Rebuild,
    /// Also sales that Redis does not have: somebody may have emptied it, or set up a new one.
    pub lost_sales_too: bool,
}

impl Rebuilder {
    /// Runs until `stop`, at which a rebuild under way ends; the next process starts it again. A failed rebuild is
    /// retried after a minute, after some seconds if a server was away, or as soon as a database that was behind is up
    /// to date.
    pub async fn run(self, stop: CancellationToken) {
        let mut failed: HashMap<SaleId, Instant> = HashMap::new();
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            failed.retain(|_, retry_at| *retry_at > Instant::now());
            self.rebuild_frozen(&mut failed).await;
        }
    }

    async fn rebuild_frozen(&self, failed: &mut HashMap<SaleId, Instant>) {
        // Nothing is rebuilt from a database that lost commits, but right after it has been brought up to date.
        if self.rebuild.store.behind().is_some() {
            return;
        }
        let rows = match self.rebuild.store.readable_sales().await {
            Ok((rows, _unreadable)) => rows,
            Err(error) => {
                tracing::warn!(%error, "whether a sale has to be rebuilt is not known");
                return;
            }
        };
        for row in rows {
            let id = row.sale.id;
            if matches!(row.state, SaleState::Draft | SaleState::Archived) || failed.contains_key(&id) {
                continue;
            }
            // Without Redis there is nothing to rebuild it in.
            let Ok(gate) = self.rebuild.gate.describe(&id).await else { continue };
            let needs_it = match gate.map(|gate| gate.state) {
                None => self.lost_sales_too,
                Some(state) => state == SaleState::Frozen,
            };
            if !needs_it {
                continue;
            }
            match self.rebuild.run(&id, &ActRequest::by("schedule"), &|_, _| {}).await {
                Err(RebuildError::Stopped(_)) => return,
                Ok(_)
                | Err(
                    RebuildError::UnderWay(_)
                    | RebuildError::NotNeeded(_)
                    | RebuildError::Store(StoreError::Behind(_)),
                ) => {}
                Err(error) if is_outage(&error) => {
                    tracing::warn!(sale = %id, %error, "a frozen sale could not be rebuilt yet");
                    failed.insert(id, Instant::now() + RETRY_OUTAGE_AFTER);
                }
                Err(error) => {
                    tracing::error!(sale = %id, %error, "a frozen sale could not be rebuilt; retried in a minute");
                    failed.insert(id, Instant::now() + RETRY_AFTER);
                }
            }
        }
    }
}

/// Whether the rebuild may succeed as soon as a server is back.
fn is_outage(error: &RebuildError) -> bool {
    matches!(
        error,
        RebuildError::Queue(_)
            | RebuildError::Lease(_)
            | RebuildError::Store(StoreError::Away(_) | StoreError::Locked(_))
            | RebuildError::Gate(GateError::Unavailable(_) | GateError::Late(_))
    )
}
