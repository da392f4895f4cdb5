//! The gate witnesses how far the database has come, and so reveals a database that has lost commits.

use crate::domain::{Place, SaleId};
use crate::gate::{Gate, GateError};
use crate::settlement::SettlementError;
use crate::store::{Store, StoreError};

/// Compares the database with the places that the gate and this process know, then sends the gate the places that it
/// does not know yet. On `Ok` the database has every commit that the gate has witnessed. Idempotent. Each process does it
/// every second, and before it acts on what the database says.
///
/// # Errors
/// [`StoreError::Behind`](crate::store::StoreError::Behind): the database has lost commits. With any other error it is
/// not known whether it has. Redis then has every place that this process knows of.
pub async fn compare_places(gate: &Gate, store: &Store) -> Result<(), SettlementError> {
    let witnessed = witnessed_places(gate).await?;
    for (sale, place) in &witnessed {
        store.observe_place(sale, *place);
    }
    if let Err(error) = store.check_places().await {
        if matches!(error, StoreError::Behind(_)) {
            pass_on(gate, store).await?;
        }
        return Err(error.into());
    }
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

/// Has Redis keep the places that reveal the loss, also those of sales that it has lost. Otherwise a process that has
/// just started would hear of none, write to the database, and so bring it past the place that reveals the loss.
async fn pass_on(gate: &Gate, store: &Store) -> Result<(), SettlementError> {
    for (sale, place) in store.places_lost().await? {
        match gate.witness(&sale, place).await {
            Ok(_) => {}
            Err(GateError::NotLoaded) => gate.remember_place(&sale, place).await?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The place of each sale that Redis has witnessed.
pub async fn witnessed_places(gate: &Gate) -> Result<Vec<(SaleId, Place)>, GateError> {
    let mut witnessed = gate.remembered_places().await?;
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
