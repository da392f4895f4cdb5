//! Writes one batch of entries to rows, under the leases of their users. Several batches may run at once, each with a
//! separate report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::batch_size::BatchSize;
use super::error::ReplayError;
use super::parts::{Progress, Replay};
use super::report::Report;
use super::rows::{self, Rows, count_row};
use crate::domain::{Entry, Order, OrderEntry, OrderStatus, SaleId};
use crate::gate::{GateError, Outcome, Settlement};
use crate::lease::{COMMIT_MARGIN, Guard, LeaseOptions, release_all};
use crate::link::call_together;
use crate::recovery::retry::Retry;
use crate::settlement::give_back;
use crate::store::{Restore, Restored, Return, StoreError, WriteMode};

/// How long a user's lease lasts.
const LEASE: Duration = Duration::from_secs(5);

pub(super) struct Writer<'a> {
    pub(super) replay: &'a Replay,
    pub(super) writing: WriteMode,
    pub(super) progress: &'a Progress<'a>,
    pub(super) stop: CancellationToken,
    /// Orders in one transaction.
    pub(super) size: Arc<BatchSize>,
}

impl Writer<'_> {
    /// Writes `entries` in batches of at most `most`. `report` holds what happened to them, even after an error.
    pub(super) async fn batches(
        &self,
        entries: Vec<Entry>,
        most: usize,
        report: &mut Report,
    ) -> Result<(), ReplayError> {
        for batch in entries.chunks(most) {
            if self.stop.is_cancelled() {
                break;
            }
            match self.writing {
                WriteMode::DryRun => self.count_batch(batch.to_vec(), report).await?,
                _ => self.batch(batch.to_vec(), report).await?,
            }
        }
        Ok(())
    }

    async fn count_batch(&self, mut pending: Vec<Entry>, report: &mut Report) -> Result<(), ReplayError> {
        let rows = self.leave_out_settled(&mut pending, report).await?;
        let orders = pending.iter().filter_map(Entry::order);
        let changed = orders.filter(|order| rows.contains_key(&order.id)).count() as u64;
        report.counts.changed += changed;
        report.counts.inserted += pending.len() as u64 - changed;
        Ok(())
    }

    /// Writes the entries that are not in place yet, and reports each order. After an error, some unreported orders
    /// may have been written anyway.
    async fn batch(&self, mut pending: Vec<Entry>, report: &mut Report) -> Result<(), ReplayError> {
        let mut checked = false;
        let mut retry = Retry::default();
        loop {
            let size = self.size.now().min(pending.len());
            let written = async {
                if !checked {
                    self.leave_out_settled(&mut pending, report).await?;
                    checked = true;
                }
                self.write_some(&mut pending, size, report).await
            };
            match written.await {
                Ok(_) if pending.is_empty() => break,
                Ok(true) => {
                    self.size.grow_from(size);
                    retry = Retry::default();
                    continue;
                }
                // The users of the remaining orders are busy.
                Ok(false) if retry.may_retry() => {}
                Ok(false) => {
                    report_busy(&pending, report);
                    break;
                }
                Err(error) if error.is_transient() && retry.may_retry() => {
                    self.size.shrink_from(size);
                    (self.progress.say)(&format!("waiting: {error}"));
                }
                Err(error) => return Err(error),
            }
            if !retry.pause(&self.stop).await {
                break;
            }
        }
        Ok(())
    }

    /// Writes the first `size` entries. Those whose users are busy, or all of them after an error, go to the end of
    /// `pending`. Returns whether any was written.
    async fn write_some(
        &self,
        pending: &mut Vec<Entry>,
        size: usize,
        report: &mut Report,
    ) -> Result<bool, ReplayError> {
        let mut part: Vec<Entry> = pending.drain(..size.min(pending.len())).collect();
        let all = part.len();
        if all == 0 {
            return Ok(false);
        }
        let written = self.write(&mut part, report).await;
        let left = part.len();
        pending.append(&mut part);
        written.map(|()| left < all)
    }

    /// Orders that are already in place need no lease and no transaction. On an error nothing has been reported.
    async fn leave_out_settled(
        &self,
        pending: &mut Vec<Entry>,
        report: &mut Report,
    ) -> Result<Rows, StoreError> {
        let ids: Vec<_> = pending.iter().filter_map(Entry::order).map(|order| order.id).collect();
        let rows = rows::read(&self.replay.store, &ids).await?;
        pending.retain(|entry| !rows::is_settled(&mut report.counts, &rows, entry));
        Ok(rows)
    }

    /// Writes the orders whose users' leases are free; the others stay in `pending`.
    async fn write(&self, pending: &mut Vec<Entry>, report: &mut Report) -> Result<(), ReplayError> {
        let orders = pending.iter().filter_map(Entry::order);
        let users = orders.map(|order| (order.sale.as_str(), order.user.as_str()));
        let options = LeaseOptions::lasting(LEASE);
        let (guards, tokens) = self.replay.leases.take_in_scopes(users, options).await?;
        let token = |order: &Order| tokens.get(&(order.sale.as_str(), order.user.as_str())).copied();
        let tokens: Vec<Option<i64>> = pending.iter().map(|entry| entry.order().and_then(token)).collect();
        let (mut restores, mut busy) = (Vec::new(), Vec::new());
        for (token, entry) in tokens.into_iter().zip(pending.drain(..)) {
            match (token, entry) {
                (Some(fence), Entry::Order(entry)) => {
                    restores.push(Restore { entry: *entry, begins: false, fence });
                }
                (Some(fence), Entry::Accepted(order)) => {
                    restores.push(Restore { entry: confirmed(order), begins: true, fence });
                }
                (_, entry) => busy.push(entry),
            }
        }
        // While the database is behind, nothing is returned; maintenance does it when the new line has begun.
        let line = self.replay.store.line().await.unwrap_or_default();
        let restored = self.commit(&restores, &guards).await;
        if let Ok(restored) = &restored {
            let written = count(&restores, restored, line, &mut busy, report);
            self.settle(written).await;
        }
        release_all(guards).await;
        *pending = busy;
        if restored.is_err() {
            // Nothing is known to be written, so everything is tried again; rows that exist are recognised.
            pending.extend(restores.into_iter().map(into_entry));
        }
        restored.map(drop)
    }

    async fn commit(&self, restores: &[Restore], guards: &[Guard]) -> Result<Vec<Restored>, ReplayError> {
        let valid = || guards.iter().all(|guard| guard.is_valid_for(COMMIT_MARGIN));
        let relog = self.writing == WriteMode::RowsAndLog;
        Ok(self.replay.store.restore_orders(restores, relog, &valid).await?)
    }

    /// Reports the new rows to the gate. If the gate is unavailable, the sweep and maintenance do the rest.
    async fn settle(&self, written: Written<'_>) {
        let Replay { gate, store, .. } = self.replay;
        let settling = written.live.iter().map(async |(sale, settlements)| {
            match gate.settle(sale, settlements).await {
                // A frozen or lost gate is rebuilt from the rows.
                Ok(_) | Err(GateError::Frozen | GateError::NotLoaded) => {}
                Err(error) => tracing::debug!(%sale, %error, "settling left to the sweep"),
            }
        });
        call_together(settling).await;
        for (sale, owed) in written.ended {
            // The gate returns only units that it still holds.
            if let Err(error) = give_back(gate, store, &owed).await {
                tracing::debug!(%sale, %error, "returning units left to maintenance");
            }
        }
    }
}

/// The results of a batch for the gate, by sale.
#[derive(Default)]
struct Written<'a> {
    live: BTreeMap<&'a SaleId, Vec<Settlement>>,
    ended: BTreeMap<&'a SaleId, Vec<Return>>,
}

/// Counts a committed batch. An order that the database refuses is reported and left without a row: it can still get
/// one, whereas an order recorded as failed never can.
fn count<'a>(
    restores: &'a [Restore],
    restored: &[Restored],
    line: i64,
    busy: &mut Vec<Entry>,
    report: &mut Report,
) -> Written<'a> {
    let mut written = Written::default();
    for (restore, restored) in restores.iter().zip(restored) {
        let (order, status, counts) = (&restore.entry.order, restore.entry.status, &mut report.counts);
        match restored {
            Restored::Inserted => counts.inserted += 1,
            Restored::Changed => counts.changed += 1,
            Restored::Same => count_row(counts, status),
            Restored::Stale => busy.push(into_entry(restore.clone())),
            Restored::Refused(why) => {
                counts.refused += 1;
                report.trouble(format!("{}: {why}", order.id));
            }
        }
        let is_written = matches!(restored, Restored::Inserted | Restored::Changed);
        if is_written && !status.is_live() && restore.entry.failure.is_none() {
            let owed = Return { id: order.id, sale: order.sale.clone(), user: order.user.clone(), line };
            written.ended.entry(&order.sale).or_default().push(owed);
        }
        if is_written && status.is_live() {
            let kept = Settlement { id: order.id, user: order.user.clone(), outcome: Outcome::Kept };
            written.live.entry(&order.sale).or_default().push(kept);
        }
    }
    written
}

fn report_busy(pending: &[Entry], report: &mut Report) {
    report.counts.busy += pending.len() as u64;
    for order in pending.iter().filter_map(Entry::order) {
        report.trouble(format!("{}: another process is acting for its user", order.id));
    }
}

/// The row of an order that is known only as accepted.
pub(super) fn confirmed(order: Order) -> OrderEntry {
    OrderEntry {
        status: OrderStatus::Confirmed,
        failure: None,
        version: 1,
        recorded_at: order.accepted_at,
        updated_at: order.accepted_at,
        pay_by: None,
        history: Vec::new(),
        order,
    }
}

fn into_entry(restore: Restore) -> Entry {
    match restore.begins {
        true => Entry::Accepted(restore.entry.order),
        false => Entry::Order(Box::new(restore.entry)),
    }
}
