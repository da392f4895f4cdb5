//! Entries of orders that have a row, in a gate that has forgotten that they were settled.

use super::SettlementError;
use crate::domain::{OrderId, SaleId};
use crate::gate::Gate;
use crate::store::Store;

/// Orders that are looked up together.
const AT_ONCE: usize = 1_000;

/// Has readers go to the row of every order that has one. Call it before a gate that may have lost writes is believed:
/// its entry says `accepted`, although its buyer may have read `paid`. The sweep settles the entries. May be repeated, and
/// works on a frozen gate.
pub async fn mark_recorded(gate: &Gate, store: &Store, sale: &SaleId) -> Result<(), SettlementError> {
    let waiting = gate.in_flight(sale).await?;
    let waiting: Vec<OrderId> =
        waiting.into_iter().filter(|ticket| !ticket.ended).map(|ticket| ticket.order.id).collect();
    for ids in waiting.chunks(AT_ONCE) {
        let recorded: Vec<OrderId> = store.row_versions(ids).await?.into_keys().collect();
        if !recorded.is_empty() {
            gate.mark_ended(sale, &recorded).await?;
        }
    }
    Ok(())
}
