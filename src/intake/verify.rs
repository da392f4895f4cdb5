//! What a Redis that was started anew must stand before it sells again: no sale in it may be behind
//! the database.

use crate::gate::{Gate, GateError};
use crate::store::Store;

/// Freezes every sale whose gate is behind its rows. An error says that this could not be found
/// out: then nothing may be sold yet.
pub async fn verify(gate: Gate, store: Store) -> Result<(), String> {
    for sale in gate.sales().await.map_err(|error| error.to_string())? {
        let orders = store.highest_number(&sale).await.map_err(|error| error.to_string())?;
        // What an operator did last has a number too: a pause that was lost would sell.
        let row = store.sale(&sale).await.map_err(|error| error.to_string())?;
        // Units that came back took one as well.
        let persisted = orders.max(row.map(|row| row.number.max(row.told)).unwrap_or_default());
        gate.saw(&sale, persisted);
        let frozen = match gate.freeze_if_behind(&sale, persisted).await {
            Ok(frozen) => frozen,
            // One sale that nobody can read must not keep the others shut; it sells nothing itself.
            Err(error @ GateError::Broken(_)) => {
                tracing::error!(%sale, %error, "a sale in redis cannot be read");
                false
            }
            Err(error) => return Err(error.to_string()),
        };
        if frozen {
            metrics::counter!("gate_frozen_total").increment(1);
            tracing::error!(%sale, %persisted, "sale frozen: redis came back without writes that the database has");
        }
    }
    Ok(())
}
