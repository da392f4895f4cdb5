//! What the database has committed, told to the gate.

use std::collections::BTreeMap;

use super::adopt;
use crate::domain::{Failure, Order, SaleId, SaleState};
use crate::gate::{Gate, GateError, Moved, Outcome, Settlement};
use crate::lease::Leases;
use crate::link::call_together;
use crate::store::{Recorded, Store, StoreError};

#[derive(Default)]
pub struct Outcomes {
    sales: BTreeMap<SaleId, Told>,
    /// Orders whose refusal stops their sale.
    refused: Vec<(Order, Failure)>,
}

/// What the gate of one sale is told.
#[derive(Default)]
struct Told {
    settlements: Vec<Settlement>,
    /// Of each, the epoch in which it was accepted.
    epochs: Vec<i64>,
}

impl Outcomes {
    pub async fn enter(
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
            _ => super::outcome(store, order, failure).await?,
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
        let told = self.sales.entry(order.sale.clone()).or_default();
        told.settlements.push(settlement);
        told.epochs.push(order.number.epoch);
        Ok(())
    }

    /// Pauses first: a gate that has promised what does not exist must not free a user to try again.
    pub async fn settle(self, gate: &Gate, store: &Store, leases: &Leases) {
        let mut stopped: BTreeMap<SaleId, Failure> = BTreeMap::new();
        for (order, failure) in self.refused {
            // A late copy of a refusal that was settled long ago stops nothing again.
            if !matches!(gate.ticket(&order.sale, order.id).await, Ok(None)) {
                stopped.insert(order.sale, failure);
            }
        }
        for (sale, failure) in stopped {
            metrics::counter!("worker_sales_paused_total").increment(1);
            let paused = gate.move_sale(&sale, SaleState::Paused, &[SaleState::Open]).await;
            // In its row as well: neither a Redis that forgets it nor a rebuild may undo it.
            if let Ok(Moved::Now(number)) = paused
                && let Err(error) = store.set_sale_state(&sale, SaleState::Paused, number).await
            {
                tracing::warn!(%sale, %error, "the pause is in the gate alone");
            }
            tracing::error!(%sale, failure = failure.as_str(), ?paused, "sale paused: gate and database disagree");
        }
        let told = self.sales.into_iter().map(|(sale, told)| told.tell(gate, store, leases, sale));
        call_together(told).await;
    }
}

impl Told {
    async fn tell(self, gate: &Gate, store: &Store, leases: &Leases, sale: SaleId) {
        let Self { settlements, epochs } = self;
        let number = match gate.settle(&sale, &settlements).await {
            Ok(number) => number,
            // Archived, or lost: there is nothing to tell.
            Err(GateError::NotLoaded) => return,
            Err(error) => {
                tracing::warn!(%sale, orders = settlements.len(), %error, "left to the sweep to settle");
                return;
            }
        };
        // The gate was rebuilt after these were accepted: it may not know them.
        let older = settlements
            .iter()
            .zip(epochs)
            .filter(|(settlement, epoch)| *epoch < number.epoch && settlement.outcome == Outcome::Kept);
        let older: Vec<_> = older.map(|(settlement, _)| (&settlement.user, settlement.id)).collect();
        let known = gate.has_records_of(&sale, &older).await.unwrap_or_default();
        for ((user, id), _) in older.into_iter().zip(known).filter(|(_, known)| !known) {
            if let Err(error) = adopt(gate, store, leases, &sale, user, id).await {
                tracing::warn!(order_id = %id, %error, "left to the next comparison to adopt");
            }
        }
    }
}
