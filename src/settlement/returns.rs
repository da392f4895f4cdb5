//! Units of ended orders go back on sale, each exactly once: the script counts a unit only if the gate
//! still holds the order.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;

use super::SettlementError;
use crate::domain::{OrderId, SaleId, SaleState};
use crate::fault::fault;
use crate::gate::{Gate, GateError, Outcome, Settlement};
use crate::store::{Return, Store, StoreError};

/// Gives the units of one sale's ended orders back to the gate. Call it after their end is committed. On
/// `Ok` the gate has the units and the rows no longer owe them. Idempotent: the script acts only on orders
/// that the gate still holds.
///
/// The highest number is read from the rows, so that a gate that has lost writes freezes instead of taking
/// the units, even if this process has seen nothing of it before.
///
/// If the database has gone back since the ends were read, the orders may be live again. Then the gate takes nothing
/// back, however late this call reaches it: [`GateError::Outdated`].
pub async fn give_back(gate: &Gate, store: &Store, owed: &[Return]) -> Result<(), SettlementError> {
    let Some(sale) = owed.first().map(|owed| &owed.sale) else { return Ok(()) };
    let line = owed.iter().map(|owed| owed.line).min().unwrap_or_default();
    store.ensure_current().await?;
    let row = store.sale(sale).await?;
    let rows = row.as_ref().map(|row| row.number.max(row.witnessed)).unwrap_or_default();
    gate.observe_number(sale, store.highest_number(sale).await?.max(rows));
    gate.observe_place(sale, store.highest_place(sale));
    let ids: Vec<OrderId> = owed.iter().map(|owed| owed.id).collect();
    let settlements: Vec<Settlement> = owed
        .iter()
        .map(|owed| Settlement { id: owed.id, user: owed.user.clone(), outcome: Outcome::Ended })
        .collect();
    fault!("return.before", return Err(GateError::Unavailable("injected".into()).into()));
    let number = match gate.settle_in_line(sale, line, &settlements).await {
        // An archived sale has left the gate, and returned units are no longer for sale.
        Err(GateError::NotLoaded) if row.is_some_and(|row| row.state == SaleState::Archived) => rows,
        settled => settled?,
    };
    fault!("return.after", return Err(GateError::Late("injected".into()).into()));
    Ok(store.finish_returns(sale, number, &ids).await?)
}

/// Called before each sale of a batch.
pub type BeforeEach<'a> = &'a (dyn Fn() -> BoxFuture<'a, ()> + Send + Sync);

/// What one call of [`give_back_pending`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenBack {
    /// Orders whose units are back.
    pub returned: usize,
    /// Whether further returns may be pending.
    pub more: bool,
}

/// Gives back the units of the oldest pending returns, at most `limit`. A sale whose gate cannot take them is added to
/// `unavailable`, and its returns are left out. Calls `before_each` before each sale, since each may have to wait for a lock.
/// May be repeated.
pub async fn give_back_pending(
    gate: &Gate,
    store: &Store,
    limit: u64,
    unavailable: &mut Vec<SaleId>,
    before_each: BeforeEach<'_>,
) -> Result<GivenBack, StoreError> {
    let batch = store.pending_returns(unavailable, limit).await?;
    let mut sales: BTreeMap<&SaleId, Vec<Return>> = BTreeMap::new();
    for owed in &batch {
        sales.entry(&owed.sale).or_default().push(owed.clone());
    }
    let mut returned = 0;
    for (sale, owed) in sales {
        before_each().await;
        match give_back(gate, store, &owed).await {
            Ok(()) => returned += owed.len(),
            Err(error) => {
                tracing::warn!(%sale, orders = owed.len(), %error, "units of ended orders wait for their gate");
                // A frozen sale must not hold up the units of the others.
                unavailable.push(sale.clone());
            }
        }
    }
    Ok(GivenBack { returned, more: batch.len() as u64 == limit })
}
