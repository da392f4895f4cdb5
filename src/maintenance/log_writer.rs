//! Moves entries from the database's log outbox to the order log: every change of an order, a sale or a payment.

use super::MaintenanceError;
use crate::domain::Millis;
use crate::gate::Gate;
use crate::queue::OrderLog;
use crate::settlement::{SettlementError, compare_places};
use crate::store::{Store, StoreError};

/// Entries in one message of the log.
const BATCH: u64 = 250;

/// Maximum messages in one round, so that other work gets its turn.
const BATCHES: usize = 40;

/// Writes what a process that stops would leave to the next front. Not from a database that has gone back in time: what it
/// believes to be unwritten is in the log.
pub async fn write_last_entries(
    gate: &Gate,
    store: &Store,
    log: &OrderLog,
) -> Result<usize, MaintenanceError> {
    match compare_places(gate, store).await {
        Err(SettlementError::Store(StoreError::Behind(_))) => Ok(0),
        _ => write_log(store, log).await,
    }
}

/// Writes up to 10,000 entries that the order log lacks, oldest first, and returns how many were written. An entry is
/// deleted from the database only once the broker has confirmed it. A crash in between writes some entries
/// twice; readers ignore the repeats.
pub async fn write_log(store: &Store, log: &OrderLog) -> Result<usize, MaintenanceError> {
    let mut written = 0;
    for _ in 0..BATCHES {
        let unlogged = store.unlogged(BATCH).await?;
        let age = unlogged.oldest.map_or(0, |oldest| (Millis::now().0 - oldest.0).max(0));
        metrics::gauge!("doorbuster_order_log_oldest_unwritten_seconds").set(age as f64 / 1000.0);
        if unlogged.ids.is_empty() {
            break;
        }
        if !unlogged.entries.is_empty() {
            log.append(&unlogged.entries, &unlogged.places).await?;
        }
        store.forget_logged(&unlogged.ids).await?;
        written += unlogged.entries.len();
        if (unlogged.ids.len() as u64) < BATCH {
            metrics::gauge!("doorbuster_order_log_oldest_unwritten_seconds").set(0.0);
            break;
        }
    }
    metrics::counter!("doorbuster_order_log_written_total").increment(written as u64);
    Ok(written)
}
