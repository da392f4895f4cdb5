//! Units of ended orders go back on sale, each exactly once: the script counts a unit only if the gate
//! still holds the order.

use super::SettlementError;
use crate::domain::{OrderId, SaleState};
use crate::fault::fault;
use crate::gate::{Gate, GateError, Outcome, Settlement};
use crate::store::{Return, Store};

/// Gives the units of one sale's ended orders back to the gate. Call it after their end is committed. On
/// `Ok` the gate has the units and the rows no longer owe them. Idempotent: the script acts only on orders
/// that the gate still holds.
///
/// The highest number is read from the rows, so that a gate that has lost writes freezes instead of taking
/// the units, even if this process has seen nothing of it before.
pub async fn give_back(gate: &Gate, store: &Store, owed: &[Return]) -> Result<(), SettlementError> {
    let Some(sale) = owed.first().map(|owed| &owed.sale) else { return Ok(()) };
    let row = store.sale(sale).await?;
    let rows = row.as_ref().map(|row| row.number.max(row.witnessed)).unwrap_or_default();
    gate.observe_number(sale, store.highest_number(sale).await?.max(rows));
    let ids: Vec<OrderId> = owed.iter().map(|owed| owed.id).collect();
    let settlements: Vec<Settlement> = owed
        .iter()
        .map(|owed| Settlement { id: owed.id, user: owed.user.clone(), outcome: Outcome::Ended })
        .collect();
    fault!("return.before", return Err(GateError::Unavailable("injected".into()).into()));
    let number = match gate.settle(sale, &settlements).await {
        Err(GateError::Frozen) => {
            // Orders that were in flight must stop showing as accepted.
            gate.mark_ended(sale, &ids).await?;
            return Err(GateError::Frozen.into());
        }
        // An archived sale has left the gate, and returned units are no longer for sale.
        Err(GateError::NotLoaded) if row.is_some_and(|row| row.state == SaleState::Archived) => rows,
        settled => settled?,
    };
    fault!("return.after", return Err(GateError::Late("injected".into()).into()));
    Ok(store.finish_returns(sale, number, &ids).await?)
}
