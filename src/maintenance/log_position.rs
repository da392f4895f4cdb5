//! Records in the database from when on it would need the order log, if it were restored from a backup of now.

use super::MaintenanceError;
use crate::domain::{Millis, SaleState};
use crate::gate::Gate;
use crate::store::Store;

/// Records the earliest time of an entry that the database may lack: an order in flight was published before its row is
/// written, and everything else is committed before it is logged. While a gate cannot be believed, the position stays
/// where it is. May be repeated.
///
/// The slowest of the clocks of this process, the database and Redis decides: with a position that is too late, a replay
/// would begin behind entries that the database lacks.
pub(super) async fn record_log_position(gate: &Gate, store: &Store) -> Result<(), MaintenanceError> {
    let mut from = store.read_clock().await?.min(Millis::now());
    if !gate.is_compared().await? {
        return Ok(());
    }
    for row in store.sales().await? {
        if matches!(row.state, SaleState::Draft | SaleState::Archived) {
            continue;
        }
        match gate.describe(&row.sale.id).await? {
            Some(sale) if sale.state != SaleState::Frozen => {
                from = sale.oldest.unwrap_or(sale.now).min(sale.now).min(from);
            }
            _ => return Ok(()),
        }
    }
    Ok(store.set_replay_from(from).await?)
}
