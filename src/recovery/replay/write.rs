//! One batch of entries into rows, under the leases of their users. Several batches may be under way at
//! once: what they do is told when they have ended.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;

use super::retry::Retry;
use super::rows::{self, count_row};
use super::{Progress, Replay, ReplayError, Report, Rows};
use crate::domain::{Entry, Order, OrderEntry, OrderStatus, SaleId};
use crate::gate::{GateError, Outcome, Settlement};
use crate::lease::{COMMIT_MARGIN, Guard, LeaseOptions, release_all};
use crate::link::call_together;
use crate::settlement::give_back;
use crate::store::{Restore, Restored, Return, StoreError, WriteMode};

/// How long a user's lease lasts.
const LEASE: std::time::Duration = std::time::Duration::from_secs(5);

pub(super) struct Writer<'a> {
    pub(super) replay: &'a Replay,
    pub(super) writing: WriteMode,
    pub(super) progress: &'a Progress<'a>,
    pub(super) stop: CancellationToken,
}

impl Writer<'_> {
    /// One after the other, so many orders in each. `told` has what became of them, after an error as well.
    pub(super) async fn batches(
        &self,
        entries: Vec<Entry>,
        most: usize,
        told: &mut Report,
    ) -> Result<(), ReplayError> {
        for batch in entries.chunks(most) {
            if self.stop.is_cancelled() {
                break;
            }
            self.batch(batch.to_vec(), told).await?;
        }
        Ok(())
    }

    /// Writes what is not there yet, and tells what became of each order. After an error some of those of
    /// which nothing was told may be written all the same.
    async fn batch(&self, mut pending: Vec<Entry>, told: &mut Report) -> Result<(), ReplayError> {
        if self.writing == WriteMode::DryRun {
            let rows = self.leave_out_settled(&mut pending, told).await?;
            let changed =
                pending.iter().filter_map(Entry::order).filter(|order| rows.contains_key(&order.id));
            let changed = changed.count() as u64;
            told.counts.changed += changed;
            told.counts.inserted += pending.len() as u64 - changed;
            return Ok(());
        }
        let mut looked = false;
        let mut patience = Retry::default();
        loop {
            let tried = async {
                if !looked {
                    self.leave_out_settled(&mut pending, told).await?;
                    looked = true;
                }
                match pending.is_empty() {
                    true => Ok(()),
                    false => self.write(&mut pending, told).await,
                }
            };
            let tried = tried.await;
            let again = patience.lasts();
            match tried {
                Ok(()) if pending.is_empty() => break,
                // Somebody acts for the users of the rest.
                Ok(()) if again => {}
                Ok(()) => {
                    told.counts.busy += pending.len() as u64;
                    for order in pending.iter().filter_map(Entry::order) {
                        told.trouble(format!("{}: somebody else acts for its user", order.id));
                    }
                    break;
                }
                Err(error) if again && error.passes() => {
                    (self.progress.say)(&format!("waits: {error}"));
                }
                Err(error) => return Err(error),
            }
            if !patience.pause(&self.stop).await {
                break;
            }
        }
        Ok(())
    }

    /// What is there already takes no lease and no transaction. After an error nothing was told.
    async fn leave_out_settled(
        &self,
        pending: &mut Vec<Entry>,
        told: &mut Report,
    ) -> Result<Rows, StoreError> {
        let ids: Vec<_> = pending.iter().filter_map(Entry::order).map(|order| order.id).collect();
        let rows = rows::read(&self.replay.store, &ids).await?;
        pending.retain(|entry| !rows::is_settled(&mut told.counts, &rows, entry));
        Ok(rows)
    }

    /// Writes those whose users' leases are free; the others stay in `pending`.
    async fn write(&self, pending: &mut Vec<Entry>, told: &mut Report) -> Result<(), ReplayError> {
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
        let written = self.commit(&restores, &guards, &mut busy, told).await;
        release_all(guards).await;
        *pending = busy;
        if written.is_err() {
            // Nothing of it is known to be written: all of it comes again, and is recognised.
            pending.extend(restores.into_iter().map(into_entry));
        }
        written
    }

    /// What the last line refuses is told and left as it is: an order that has no row can still get one,
    /// one that was written as failed cannot.
    async fn commit(
        &self,
        restores: &[Restore],
        guards: &[Guard],
        busy: &mut Vec<Entry>,
        told: &mut Report,
    ) -> Result<(), ReplayError> {
        let valid = || guards.iter().all(|guard| guard.is_valid_for(COMMIT_MARGIN));
        let relog = self.writing == WriteMode::RowsAndLog;
        let restored = self.replay.store.restore_orders(restores, relog, &valid).await?;
        let mut settlements: BTreeMap<&SaleId, Vec<Settlement>> = BTreeMap::new();
        let mut owed: BTreeMap<&SaleId, Vec<Return>> = BTreeMap::new();
        for (restore, restored) in restores.iter().zip(restored) {
            let (order, counts) = (&restore.entry.order, &mut told.counts);
            match &restored {
                Restored::Inserted => counts.inserted += 1,
                Restored::Changed => counts.changed += 1,
                Restored::Same => count_row(counts, restore.entry.status),
                Restored::Stale => busy.push(into_entry(restore.clone())),
                Restored::Refused(why) => {
                    counts.refused += 1;
                    told.trouble(format!("{}: {why}", order.id));
                }
            }
            let written = matches!(restored, Restored::Inserted | Restored::Changed);
            if written && !restore.entry.status.is_live() && restore.entry.failure.is_none() {
                let owes = Return { id: order.id, sale: order.sale.clone(), user: order.user.clone() };
                owed.entry(&order.sale).or_default().push(owes);
            }
            if restored == Restored::Inserted && restore.entry.status.is_live() {
                let kept = Settlement { id: order.id, user: order.user.clone(), outcome: Outcome::Kept };
                settlements.entry(&order.sale).or_default().push(kept);
            }
        }
        let settling = settlements.iter().map(async |(sale, settlements)| {
            match self.replay.gate.settle(sale, settlements).await {
                // A gate that is frozen, away or gone is told by the sweep, or rebuilt from the rows.
                Ok(_) | Err(GateError::Frozen | GateError::NotLoaded) => {}
                Err(error) => tracing::debug!(%sale, %error, "left to the sweep to settle"),
            }
        });
        call_together(settling).await;
        for (sale, owed) in owed {
            // The gate may have these units back already: it takes what it still holds.
            if let Err(error) = give_back(&self.replay.gate, &self.replay.store, &owed).await {
                tracing::debug!(%sale, %error, "left to the upkeep to give back");
            }
        }
        Ok(())
    }
}

/// The row of an order of which only that is known that it was accepted.
fn confirmed(order: Order) -> OrderEntry {
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
