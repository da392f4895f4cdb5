//! Has rebuilt gates adopt the orders that got their row afterwards.

use std::collections::HashMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::domain::{Millis, SaleId, SaleState};
use crate::gate::Gate;
use crate::lease::{LeaseOptions, Leases};
use crate::settlement::Settler;
use crate::store::{OlderEpoch, Store};

/// No sale can have this id.
const ADOPTION: &str = "_adoption";

/// For how long another front must wait when the one that looks dies.
const LEASE: Duration = Duration::from_secs(15);

/// How long a look may take.
const AT_MOST: Duration = Duration::from_secs(3_600);

/// Has rebuilt gates adopt what got its row afterwards, where the worker that wrote it could not.
pub struct Adopter {
    pub gate: Gate,
    pub store: Store,
    pub leases: Leases,
}

/// How often rows of older epochs are looked for, and how far back.
const ADOPTED_EVERY: Duration = Duration::from_secs(5);
const BACK: Duration = Duration::from_secs(60);
const PAGE: u64 = 500;

impl Adopter {
    /// Runs until `stop`, in one front of all.
    pub async fn run(self, stop: CancellationToken) {
        let mut seen: HashMap<SaleId, Millis> = HashMap::new();
        while stop.run_until_cancelled(tokio::time::sleep(ADOPTED_EVERY)).await.is_some() {
            let options = LeaseOptions::lasting(LEASE).max_hold(AT_MOST);
            let taken = self.leases.take(ADOPTION, ["leader"], options).await;
            let Ok(Some(guard)) = taken.map(|taken| taken.guard) else { continue };
            let looked = guard.until_lost(self.look(&mut seen));
            if let Some(Ok(Err(error))) = stop.run_until_cancelled(looked).await {
                tracing::debug!(error, "orders that a rebuilt gate does not know were not looked for");
            }
            let _ = guard.release().await;
        }
    }

    async fn look(&self, seen: &mut HashMap<SaleId, Millis>) -> Result<(), String> {
        let settler = Settler { gate: &self.gate, store: &self.store, leases: &self.leases };
        for sale in self.gate.sales().await.map_err(|error| error.to_string())? {
            let gate = self.gate.describe(&sale).await.map_err(|error| error.to_string())?;
            let Some(gate) = gate.filter(|gate| gate.number.epoch > 1 && gate.state != SaleState::Frozen)
            else {
                continue;
            };
            // A process that has just begun looks at all of them once.
            let from = seen.get(&sale).copied().unwrap_or(Millis(0));
            let now = self.store.read_clock().await.map_err(|error| error.to_string())?;
            let older = OlderEpoch { epoch: gate.number.epoch, recorded_since: from };
            let mut after = None;
            loop {
                let page = self.store.live_orders_before_epoch(&sale, older, after, PAGE).await;
                let page = page.map_err(|error| error.to_string())?;
                let orders: Vec<_> = page.iter().map(|order| (&order.user, order.id)).collect();
                let known =
                    self.gate.has_records_of(&sale, &orders).await.map_err(|error| error.to_string())?;
                for ((user, id), _) in orders.iter().zip(known).filter(|(_, known)| !known) {
                    settler.adopt(&sale, user, *id).await.map_err(|error| error.to_string())?;
                }
                after = page.last().map(|order| order.id).or(after);
                if (page.len() as u64) < PAGE {
                    break;
                }
            }
            seen.insert(sale, Millis(now.0 - BACK.as_millis() as i64));
        }
        Ok(())
    }
}
