//! From the database's outbox to the order log: what became of orders, sales and payments.

use crate::domain::Millis;
use crate::queue::OrderLog;
use crate::store::Store;

/// Entries in one message of the log.
const BATCH: u64 = 250;

/// Messages in one round, so that other work has its turn.
const BATCHES: usize = 40;

/// Writes what the order log lacks, the oldest first; says how many entries. In this order: written and
/// confirmed, then forgotten here. A crash in between writes some of it twice, which changes nothing.
pub async fn write_log(store: &Store, log: &OrderLog) -> Result<usize, String> {
    let mut written = 0;
    for _ in 0..BATCHES {
        let unlogged = store.unlogged(BATCH).await.map_err(|error| error.to_string())?;
        let age = unlogged.oldest.map_or(0, |oldest| (Millis::now().0 - oldest.0).max(0));
        metrics::gauge!("log_oldest_unwritten_seconds").set(age as f64 / 1000.0);
        if unlogged.ids.is_empty() {
            break;
        }
        if !unlogged.entries.is_empty() {
            log.append(&unlogged.entries).await.map_err(|error| error.to_string())?;
        }
        store.forget_logged(&unlogged.ids).await.map_err(|error| error.to_string())?;
        written += unlogged.entries.len();
        if (unlogged.ids.len() as u64) < BATCH {
            metrics::gauge!("log_oldest_unwritten_seconds").set(0.0);
            break;
        }
    }
    metrics::counter!("log_written_total").increment(written as u64);
    Ok(written)
}
