//! The outcomes of one batch, as the database has committed them, and their settlement.

use std::collections::BTreeMap;

use super::{Settler, settlement_of};
use crate::domain::{Failure, Millis, Order, SaleId, SaleState};
use crate::gate::{GateError, Moved, Outcome, Settlement};
use crate::link::call_together;
use crate::store::Recorded;

/// Collects the committed outcomes of a batch, sale by sale.
#[derive(Default)]
pub struct Outcomes {
    sales: BTreeMap<SaleId, SaleOutcomes>,
    /// Refused orders whose refusal pauses their sale.
    refused: Vec<(Order, Failure)>,
}

#[derive(Default)]
struct SaleOutcomes {
    settlements: Vec<Settlement>,
    /// The epoch in which each order was accepted.
    epochs: Vec<i64>,
    /// Refused, because another order of the user was there first.
    replaced: Vec<Order>,
}

impl Outcomes {
    /// Adds what the database recorded for one order. A refused fencing token or a locked row is no outcome and is left
    /// out.
    pub fn add(&mut self, order: &Order, recorded: &Recorded) {
        let failure = match recorded {
            Recorded::Stale => {
                metrics::counter!("doorbuster_worker_fence_refused_total").increment(1);
                return;
            }
            Recorded::Locked => return,
            Recorded::Confirmed => None,
            Recorded::Already(_, failure) => {
                metrics::counter!("doorbuster_worker_duplicates_total").increment(1);
                *failure
            }
            Recorded::Failed(failure, _) => Some(*failure),
        };
        let new = !matches!(recorded, Recorded::Already(..));
        if new {
            let status = if failure.is_some() { "failed" } else { "confirmed" };
            metrics::counter!("doorbuster_worker_orders_total", "status" => status).increment(1);
            let lag = order.accepted_at.until(Millis::now());
            metrics::histogram!("doorbuster_order_persist_lag_seconds").record(lag);
        }
        if let Some(failure) = failure {
            if new {
                tracing::error!(order_id = %order.id, sale = %order.sale, failure = failure.as_str(), "the database refused an accepted order");
            }
            if failure.stops_the_sale() {
                self.refused.push((order.clone(), failure));
            }
        }
        let outcomes = self.sales.entry(order.sale.clone()).or_default();
        match settlement_of(order, failure) {
            Some(settlement) => {
                outcomes.settlements.push(settlement);
                outcomes.epochs.push(order.number.epoch);
            }
            None => outcomes.replaced.push(order.clone()),
        }
    }

    /// Reports everything to the gates, one call per sale, all at once. Call it after the users' leases were released: it
    /// takes that of a user whose order another one replaced. Failures are logged and left to
    /// the sweep.
    ///
    /// Pauses sales first: a gate that has promised a unit that does not exist must not free its buyer to
    /// try again. Where that fails, nothing of the sale is settled here.
    pub async fn settle(mut self, settler: Settler<'_>) {
        let mut paused: BTreeMap<SaleId, Failure> = BTreeMap::new();
        for (order, failure) in self.refused {
            // A late copy of a refusal that was settled long ago must not pause the sale again.
            if !matches!(settler.gate.ticket(&order.sale, order.id).await, Ok(None)) {
                paused.insert(order.sale, failure);
            }
        }
        for (sale, failure) in paused {
            if let Err(error) = pause_sale(settler, &sale, failure, None).await {
                tracing::error!(%sale, failure = failure.as_str(), %error, "a sale whose gate is wrong is not paused");
                // Left to the sweep, which settles such an order only once it has paused the sale. Settled now, it would be
                // gone from the outbox, and nobody would know what to pause.
                self.sales.remove(&sale);
            }
        }
        call_together(self.sales.into_iter().map(|(sale, outcomes)| outcomes.settle(settler, sale))).await;
    }
}

/// Pauses a sale whose gate has promised a unit that the database refuses, if it is open, and with `epoch` only in that
/// one. On `Ok` it does not sell by that gate any more, and its row has the pause as well if the database answered. May be
/// repeated.
pub async fn pause_sale(
    settler: Settler<'_>,
    sale: &SaleId,
    failure: Failure,
    epoch: Option<i64>,
) -> Result<(), GateError> {
    let paused = settler.gate.pause(sale, epoch).await;
    // Whose answer is late may have been carried out, and nobody else will say so.
    if matches!(paused, Ok(Moved::Now(_)) | Err(GateError::Late(_))) {
        metrics::counter!("doorbuster_worker_sales_paused_total").increment(1);
        tracing::error!(%sale, failure = failure.as_str(), "sale paused: gate and database disagree");
    }
    // Recorded in the sale's row too, so that neither a Redis that loses it nor a rebuild undoes the pause.
    if let Moved::Now(number) | Moved::Already(number) = paused?
        && let Err(error) = settler.store.set_sale_state(sale, SaleState::Paused, number).await
    {
        tracing::warn!(%sale, %error, "the pause is in the gate alone");
    }
    Ok(())
}

impl SaleOutcomes {
    async fn settle(self, settler: Settler<'_>, sale: SaleId) {
        let Self { settlements, epochs, replaced } = self;
        let replaced: Vec<&Order> = replaced.iter().collect();
        match settler.settle_replaced(&replaced).await {
            Ok(settled) if settled == replaced.len() => {}
            Ok(settled) => {
                tracing::warn!(%sale, orders = replaced.len() - settled, "left to the sweep to settle: users are busy");
            }
            Err(error) => {
                tracing::warn!(%sale, orders = replaced.len(), %error, "left to the sweep to settle");
            }
        }
        if settlements.is_empty() {
            return;
        }
        // The gate witnesses what was committed just now, at no further call.
        settler.gate.observe_place(&sale, settler.store.highest_place(&sale));
        let number = match settler.gate.settle(&sale, &settlements).await {
            Ok(number) => number,
            // The sale is archived, or its gate is lost: nothing is left to settle.
            Err(GateError::NotLoaded) => return,
            Err(error) => {
                tracing::warn!(%sale, orders = settlements.len(), %error, "left to the sweep to settle");
                return;
            }
        };
        settler.store.observe_place(&sale, settler.gate.highest_place(&sale));
        // The gate was rebuilt after these orders were accepted, so it may not know them.
        let older = settlements
            .iter()
            .zip(epochs)
            .filter(|(settlement, epoch)| *epoch < number.epoch && settlement.outcome == Outcome::Kept);
        let older: Vec<_> = older.map(|(settlement, _)| (&settlement.user, settlement.id)).collect();
        let known = settler.gate.has_records_of(&sale, &older).await.unwrap_or_default();
        for ((user, id), _) in older.into_iter().zip(known).filter(|(_, known)| !known) {
            if let Err(error) = settler.adopt(&sale, user, id).await {
                tracing::warn!(order_id = %id, %error, "left to the next comparison to adopt");
            }
        }
    }
}
