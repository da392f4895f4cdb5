//! What a Redis that was started anew must stand before it sells again: no sale in it may be behind
//! the database.

use crate::gate::Gate;
use crate::store::Store;

/// Freezes every sale whose gate is behind its rows. An error says that this could not be found
/// out: then nothing may be sold yet.
pub async fn verify(gate: Gate, store: Store) -> Result<(), String> {
    for sale in gate.sales().await.map_err(|error| error.to_string())? {
        let persisted = store.highest_number(&sale).await.map_err(|error| error.to_string())?;
        gate.saw(&sale, persisted);
        if gate.freeze_if_behind(&sale, persisted).await.map_err(|error| error.to_string())? {
            metrics::counter!("gate_frozen_total").increment(1);
            tracing::error!(%sale, %persisted, "sale frozen: redis came back without writes that the database has");
        }
    }
    Ok(())
}
