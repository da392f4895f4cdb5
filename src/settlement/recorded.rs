//! Entries of orders that have a row, in a gate that cannot settle them or has forgotten that they were settled.

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

/// For orders whose rows are committed, and which the gate cannot settle now because it is frozen or lost: sends their
/// readers to the rows, and has those who follow them read at once. The entries of a frozen gate say `accepted` until it
/// is rebuilt, and a rebuild puts back no entry of an order that has a row, so nobody would announce it later. A failure
/// only delays both. May be repeated.
pub async fn show_rows(gate: &Gate, sale: &SaleId, ids: &[OrderId]) {
    if let Err(error) = gate.mark_changed(sale, ids).await {
        tracing::debug!(%sale, orders = ids.len(), %error, "those who follow orders hear of their rows later");
    }
}
