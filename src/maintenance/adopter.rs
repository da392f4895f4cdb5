//! Has rebuilt gates adopt orders whose rows were written only after the rebuild. The worker that writes such a row has
//! the gate adopt it at once; this task catches those where the worker could not.

use std::collections::HashMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::MaintenanceError;
use super::leader::{alone, work_alone};
use crate::domain::{Millis, SaleId, SaleState};
use crate::gate::Gate;
use crate::lease::Leases;
use crate::settlement::Settler;
use crate::store::{OlderEpoch, Store};

const SCOPE: &str = "_adoption";

/// How often to look for rows of older epochs.
const EVERY: Duration = Duration::from_secs(5);

/// Each look goes back this far before the previous one: a row may become visible after rows that are younger.
const OVERLAP: Duration = Duration::from_secs(60);

/// Rows read at once.
const PAGE: u64 = 500;

/// Looks for orders that a rebuilt gate does not know.
pub struct Adopter {
    /// Adopts the orders.
    pub gate: Gate,
    /// Has the rows.
    pub store: Store,
    /// Lets only one front look at a time.
    pub leases: Leases,
}

impl Adopter {
    /// Runs until `stop`. Errors are retried at the next look.
    pub async fn run(self, stop: CancellationToken) {
        let mut looked_at: HashMap<SaleId, Millis> = HashMap::new();
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            let look = alone(&self.leases, SCOPE, work_alone(), self.look(&mut looked_at));
            if let Some(Err(error)) = stop.run_until_cancelled(look).await {
                tracing::debug!(%error, "the search for orders that a rebuilt gate does not know was cut short");
            }
        }
    }

    async fn look(&self, looked_at: &mut HashMap<SaleId, Millis>) -> Result<(), MaintenanceError> {
        // An order that is live in a database that went back in time may have ended.
        self.store.ensure_current().await?;
        for sale in self.gate.sales().await? {
            let gate = self.gate.describe(&sale).await?;
            let Some(gate) = gate.filter(|gate| gate.number.epoch > 1 && gate.state != SaleState::Frozen)
            else {
                continue;
            };
            // A process that has just started checks every row once.
            let from = looked_at.get(&sale).copied().unwrap_or(Millis(0));
            let now = self.store.read_clock().await?;
            let older = OlderEpoch { epoch: gate.number.epoch, recorded_since: from };
            self.adopt_unknown(&sale, older).await?;
            looked_at.insert(sale, Millis(now.0 - OVERLAP.as_millis() as i64));
        }
        Ok(())
    }

    /// Adopts the live orders of older epochs that the gate lacks.
    async fn adopt_unknown(&self, sale: &SaleId, older: OlderEpoch) -> Result<(), MaintenanceError> {
        let settler = Settler { gate: &self.gate, store: &self.store, leases: &self.leases };
        let mut after = None;
        loop {
            let page = self.store.live_orders_before_epoch(sale, older, after, PAGE).await?;
            let orders: Vec<_> = page.iter().map(|order| (&order.user, order.id)).collect();
            let known = self.gate.has_records_of(sale, &orders).await?;
            for ((user, id), _) in orders.iter().zip(known).filter(|(_, known)| !known) {
                settler.adopt(sale, user, *id).await?;
            }
            after = page.last().map(|order| order.id).or(after);
            if (page.len() as u64) < PAGE {
                return Ok(());
            }
        }
    }
}
