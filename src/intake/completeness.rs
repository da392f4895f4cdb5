//! Whether gate and database can be believed when neither has an order. Only then may anyone hear "not found": an order
//! that was answered `accepted` must not vanish because one of the servers went back in time.

use super::known_sales::SaleUnknown;
use super::order_view::StatusUnknown;
use super::sale_cache::{KnownSale, read_sale};
use crate::domain::{OrderId, SaleId, SaleState};
use crate::gate::Gate;
use crate::store::{Store, StoreError};

const REBUILT: &str = "the sale is being put right after a server has lost data";

/// Fails if gate or database may lack an order that they had. Call it after both were read; what was read is then
/// everything.
pub async fn ensure_complete(gate: &Gate, store: &Store, sale: &SaleId) -> Result<(), StatusUnknown> {
    let known = read_sale(gate, store, sale).await.map_err(|error| match error {
        SaleUnknown::Gate(error) => StatusUnknown::from(error),
        SaleUnknown::Store(error) => StatusUnknown::from(error),
    })?;
    if let KnownSale::Loaded(described) = &known {
        store.observe_place(sale, described.place);
    }
    store.ensure_current_in([sale]).await?;
    match known {
        KnownSale::Lost => Err(StatusUnknown::Incomplete(REBUILT)),
        KnownSale::Loaded(sale) if sale.state == SaleState::Frozen => Err(StatusUnknown::Incomplete(REBUILT)),
        KnownSale::Loaded(_) if !gate.is_compared().await? => Err(StatusUnknown::Incomplete(REBUILT)),
        _ => Ok(()),
    }
}

/// Fails if the database lacks a commit of the sale that the gate or this process knows of; while Redis is away, this process
/// alone. Call it after the database was read: what was read is then no older than those commits.
pub async fn ensure_current_in(gate: &Gate, store: &Store, sale: &SaleId) -> Result<(), StoreError> {
    hear_place(gate, store, sale).await;
    store.ensure_current_in([sale]).await
}

/// Observes the place of the sale that the gate witnesses, if it answers: a row that is read afterwards must be as new.
pub(super) async fn hear_place(gate: &Gate, store: &Store, sale: &SaleId) {
    if let Ok(Some(place)) = gate.place(sale).await {
        store.observe_place(sale, place);
    }
}

/// Fails if the gate remembers an order of the user that was found neither in flight nor in a row.
pub fn ensure_none_is_held(held: &[OrderId], found: impl Fn(OrderId) -> bool) -> Result<(), StatusUnknown> {
    match held.iter().all(|id| found(*id)) {
        true => Ok(()),
        false => Err(StatusUnknown::Incomplete("the order's row is missing and is being restored")),
    }
}
