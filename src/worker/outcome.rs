//! What the database has committed, told to the gate.

use std::collections::BTreeMap;

use crate::domain::{Failure, Order, SaleId, SaleState};
use crate::gate::{Gate, GateError, Outcome, Settlement};
use crate::intake::settlement;
use crate::lease::LeaseError;
use crate::store::{Recorded, Store, StoreError};

/// Why a batch has to wait. Nothing was acknowledged.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerError {
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Default)]
pub(super) struct Books {
    sales: BTreeMap<SaleId, Vec<Settlement>>,
    /// Orders whose refusal stops their sale.
    refused: Vec<(Order, Failure)>,
}

impl Books {
    pub(super) async fn enter(
        &mut self,
        store: &Store,
        order: &Order,
        recorded: Recorded,
    ) -> Result<(), StoreError> {
        let failure = match &recorded {
            Recorded::Stale => {
                metrics::counter!("worker_fence_refused_total").increment(1);
                return Ok(());
            }
            Recorded::Confirmed => None,
            Recorded::Already(_, failure) => {
                metrics::counter!("worker_duplicates_total").increment(1);
                *failure
            }
            Recorded::Failed(failure, _) => Some(*failure),
        };
        let new = !matches!(recorded, Recorded::Already(..));
        if new {
            let status = if failure.is_some() { "failed" } else { "confirmed" };
            metrics::counter!("worker_orders_total", "status" => status).increment(1);
        }
        let outcome = match recorded {
            Recorded::Failed(Failure::OverLimit, winner) => Outcome::Replaced(winner),
            _ => settlement::outcome(store, order, failure).await?,
        };
        if let Some(failure) = failure {
            if new {
                tracing::error!(order_id = %order.id, sale = %order.sale, failure = failure.as_str(), "the database refused an accepted order");
            }
            if failure.stops_the_sale() {
                self.refused.push((order.clone(), failure));
            }
        }
        let settlement = Settlement { id: order.id, user: order.user.clone(), outcome };
        self.sales.entry(order.sale.clone()).or_default().push(settlement);
        Ok(())
    }

    /// Pauses first: a gate that has promised what does not exist must not free a user to try again.
    pub(super) async fn settle(self, gate: &Gate) {
        let mut stopped: BTreeMap<SaleId, Failure> = BTreeMap::new();
        for (order, failure) in self.refused {
            // A late copy of a refusal that was settled long ago stops nothing again.
            if !matches!(gate.ticket(&order.sale, order.id).await, Ok(None)) {
                stopped.insert(order.sale, failure);
            }
        }
        for (sale, failure) in stopped {
            metrics::counter!("worker_sales_paused_total").increment(1);
            let paused = gate.move_to(&sale, SaleState::Paused, &[SaleState::Open]).await;
            tracing::error!(%sale, failure = failure.as_str(), ?paused, "sale paused: gate and database disagree");
        }
        for (sale, settlements) in self.sales {
            // Archived, or lost: there is nothing to tell.
            if let Err(error) = gate.settle(&sale, &settlements).await
                && !matches!(error, GateError::NotLoaded)
            {
                tracing::warn!(%sale, orders = settlements.len(), %error, "left to the sweep to settle");
            }
        }
    }
}
