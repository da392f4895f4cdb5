//! Moves entries from the database's log outbox to the order log: every change of an order, a sale or a payment.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::MaintenanceError;
use super::leader::{Leader, keep_leading};
use super::log_position::record_log_position;
use crate::gate::Gate;
use crate::lease::{Guard, Leases};
use crate::queue::OrderLog;
use crate::settlement::{SettlementError, compare_places};
use crate::store::{Store, StoreError};

/// Entries in one message of the log.
const BATCH: u64 = 250;

/// Maximum messages in one round.
const BATCHES: usize = 40;

/// How often to record from when on the log would be needed.
const POSITION_EVERY: Duration = Duration::from_secs(10);

const SCOPE: &str = "_log";

const INCOMPLETE_FOR: &str = "doorbuster_order_log_oldest_unwritten_seconds";

/// Writes the order log, on one front at a time. It is not one of the rounds of maintenance: those may take a minute when
/// much is due, and what the log lacks is lost with the database.
pub struct LogWriter {
    /// Has witnessed the places of the database.
    pub gate: Gate,
    /// Has the changes that the log lacks.
    pub store: Store,
    /// Decides who leads.
    pub leases: Leases,
    /// Receives every change.
    pub log: OrderLog,
    /// Time between two rounds.
    pub every: Duration,
}

impl LogWriter {
    /// Runs until `stop`. Errors are logged and retried in a later round. The gauge counts from the last round after which
    /// the log had everything, so it also grows while the database cannot be read.
    pub async fn run(self, stop: CancellationToken) {
        let mut leader = Leader::new(&self.leases, SCOPE);
        let mut positioned: Option<Instant> = None;
        let mut complete = Instant::now();
        while stop.run_until_cancelled(tokio::time::sleep(self.every)).await.is_some() {
            let lead = match leader.lead().await {
                Ok(Some(lead)) => lead,
                Ok(None) => {
                    // Another process writes and measures now.
                    complete = Instant::now();
                    metrics::gauge!(INCOMPLETE_FOR).set(0.0);
                    continue;
                }
                Err(_) => {
                    // Perhaps nobody writes.
                    metrics::gauge!(INCOMPLETE_FOR).set(complete.elapsed().as_secs_f64());
                    continue;
                }
            };
            let begun = Instant::now();
            match stop.run_until_cancelled(lead.until_lost(self.round(lead, &mut positioned))).await {
                Some(Ok(Ok(true))) => complete = begun,
                Some(Ok(Ok(false))) => {}
                // The publisher has logged the cause.
                Some(Ok(Err(error))) => tracing::debug!(%error, "the order log waits"),
                Some(Err(error)) => tracing::warn!(%error, "the order log is left to another front"),
                None => break,
            }
            let waits = if complete == begun { Duration::ZERO } else { complete.elapsed() };
            metrics::gauge!(INCOMPLETE_FOR).set(waits.as_secs_f64());
        }
        leader.resign().await;
    }

    /// Writes up to 10,000 entries. `true`: the log has everything that was committed when this began.
    async fn round(
        &self,
        leader: &Guard,
        positioned: &mut Option<Instant>,
    ) -> Result<bool, MaintenanceError> {
        // What a database that went back in time believes to be unwritten is in the log. If the gate is away, the log is
        // written all the same until the lead ends.
        if let Err(SettlementError::Store(error @ StoreError::Behind(_))) =
            compare_places(&self.gate, &self.store).await
        {
            return Err(error.into());
        }
        let mut batch = Batch::default();
        for _ in 0..BATCHES {
            keep_leading(leader).await;
            batch = write_batch(&self.store, &self.log, batch).await?;
            if !batch.more {
                break;
            }
        }
        if positioned.is_none_or(|at| at.elapsed() >= POSITION_EVERY) {
            *positioned = Some(Instant::now());
            // An older position makes a replay read more, and nothing else.
            if let Err(error) = record_log_position(&self.gate, &self.store).await {
                tracing::warn!(%error, "the position in the order log could not be recorded, will be retried");
            }
        }
        Ok(!batch.more && batch.left == 0)
    }
}

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
    let mut batch = Batch::default();
    for _ in 0..BATCHES {
        batch = write_batch(store, log, batch).await?;
        if !batch.more {
            break;
        }
    }
    Ok(batch.written)
}

/// What the batches of a round have done so far.
#[derive(Default)]
struct Batch {
    written: usize,
    /// Changes that this build cannot log: they wait for one that can.
    left: u64,
    /// The last change that was read.
    last: Uuid,
    /// There may be further changes.
    more: bool,
}

/// Writes the changes after those of the batch `before`.
async fn write_batch(store: &Store, log: &OrderLog, before: Batch) -> Result<Batch, MaintenanceError> {
    let unlogged = store.unlogged_after(before.last, BATCH).await?;
    if !unlogged.entries.is_empty() {
        log.append(&unlogged.entries, &unlogged.places).await?;
    }
    if !unlogged.ids.is_empty() {
        store.forget_logged(&unlogged.ids).await?;
    }
    metrics::counter!("doorbuster_order_log_written_total").increment(unlogged.entries.len() as u64);
    Ok(Batch {
        written: before.written + unlogged.entries.len(),
        left: before.left + unlogged.read.saturating_sub(unlogged.ids.len() as u64),
        last: unlogged.last,
        more: unlogged.read >= BATCH,
    })
}
