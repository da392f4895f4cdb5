//! The gate witnesses how far the database has come, and so reveals a database that has lost commits.

use crate::domain::{Place, SaleId};
use crate::gate::{Gate, GateError};
use crate::settlement::SettlementError;
use crate::store::Store;

/// Compares the database with the places that the gate and this process know, then sends the gate the places that it
/// does not know yet. On `Ok` the database has every commit that the gate has witnessed. Idempotent. Each process does it
/// every second, and before it acts on what the database says.
///
/// # Errors
/// [`StoreError::Behind`](crate::store::StoreError::Behind): the database has lost commits. With any other error it is
/// not known whether it has.
pub async fn compare_places(gate: &Gate, store: &Store) -> Result<(), SettlementError> {
    let witnessed = witnessed_places(gate).await?;
    for (sale, place) in &witnessed {
        store.observe_place(sale, *place);
    }
    store.check_places().await?;
    let sales: Vec<_> = witnessed.iter().map(|(sale, _)| sale.clone()).collect();
    let places = store.places_of(&sales).await?;
    for (sale, witnessed) in &witnessed {
        let Some(place) = places.get(sale).filter(|place| *place > witnessed) else { continue };
        match gate.witness(sale, *place).await {
            // If another process has seen the database further on, this was a reading just before.
            Ok(known) => store.observe_place(sale, known),
            Err(GateError::NotLoaded) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The place of each sale that the gate has witnessed.
pub async fn witnessed_places(gate: &Gate) -> Result<Vec<(SaleId, Place)>, GateError> {
    let mut witnessed = Vec::new();
    for sale in gate.sales().await? {
        match gate.describe(&sale).await {
            Ok(Some(described)) => witnessed.push((sale, described.place)),
            Ok(None) => {}
            // A sale that cannot be read must not keep the others from being compared.
            Err(error @ GateError::Broken(_)) => {
                tracing::error!(%sale, %error, "a sale in redis cannot be read")
            }
            Err(error) => return Err(error),
        }
    }
    Ok(witnessed)
}
