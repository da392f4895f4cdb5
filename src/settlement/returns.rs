//! Units of ended orders go back to the gate, each once.

use super::SettlementError;
use crate::domain::{OrderId, SaleState};
use crate::fault::fault;
use crate::gate::{Gate, GateError, Outcome, Settlement};
use crate::store::{Return, Store};

/// Gives the units of ended orders of one sale back to the gate: the script acts only where the gate
/// still holds that very order. Call it after the end is committed. May be repeated.
///
/// A gate that has lost writes is frozen instead of being told, whatever this process has seen of it
/// before: the highest number is read from the rows.
pub async fn give_back(gate: &Gate, store: &Store, owed: &[Return]) -> Result<(), SettlementError> {
    let Some(sale) = owed.first().map(|owed| &owed.sale) else { return Ok(()) };
    let row = store.sale(sale).await?;
    let rows = row.as_ref().map(|row| row.number.max(row.told)).unwrap_or_default();
    gate.observe_number(sale, store.highest_number(sale).await?.max(rows));
    let ids: Vec<OrderId> = owed.iter().map(|owed| owed.id).collect();
    let settlements: Vec<Settlement> = owed
        .iter()
        .map(|owed| Settlement { id: owed.id, user: owed.user.clone(), outcome: Outcome::Ended })
        .collect();
    fault!("return.before", return Err(GateError::Unavailable("injected".into()).into()));
    let number = match gate.settle(sale, &settlements).await {
        Err(GateError::Frozen) => {
            // What was still in flight must not be shown as such.
            gate.mark_ended(sale, &ids).await?;
            return Err(GateError::Frozen.into());
        }
        // It is out of the gate, and what comes back to it is on sale no more.
        Err(GateError::NotLoaded) if row.is_some_and(|row| row.state == SaleState::Archived) => rows,
        settled => settled?,
    };
    fault!("return.after", return Err(GateError::Late("injected".into()).into()));
    Ok(store.returned(sale, number, &ids).await?)
}
