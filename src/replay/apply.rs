//! Writing rows from entries, a batch at a time, under the leases of their users.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::entries::Entries;
use super::rows::count_row;
use super::survey::Survey;
use super::{Filter, ReplayError, Work};
use crate::domain::{Entry, Millis, Order, OrderEntry, OrderStatus, SaleId};
use crate::gate::{GateError, Outcome, Settlement};
use crate::lease::{Guard, NAMES_AT_ONCE, Terms};
use crate::life::give_back;
use crate::link::Backoff;
use crate::store::{Restore, Restored, Return, StoreError, Writing};

/// Orders in one transaction.
const BATCH: usize = 256;

/// How long a user's lease lasts, and what of it must be left before COMMIT.
const LEASE: Duration = Duration::from_secs(5);
const MARGIN: Duration = Duration::from_secs(1);

/// What the clocks of fronts, database and broker may differ by.
const CLOCKS_MS: i64 = 60_000;

/// How often a batch is begun again because of a busy user or a server that is away.
const TRIES: u32 = 20;

/// What is written in one reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Ended,
    Live,
    Payments,
}

impl Turn {
    fn takes(self, entry: &Entry) -> bool {
        match entry {
            Entry::Payment(_) => self == Self::Payments,
            Entry::Order(entry) if !entry.status.is_live() => self == Self::Ended,
            Entry::Accepted(_) | Entry::Order(_) => self == Self::Live,
            // Written from the survey.
            Entry::Sale(_) | Entry::Act(_) => false,
        }
    }
}

impl Work<'_> {
    /// Reads several times: what became of each order in the end; then writes those that have ended, those
    /// that live, and what was paid for them. In the log the end of an order may stand behind the order
    /// that got its unit.
    pub(super) async fn entries(&mut self) -> Result<(), ReplayError> {
        let (source, filter) = (&self.asked.source, &self.asked.filter);
        if *source == super::Source::Log {
            self.report.begins_at = self.log_begins_after(filter).await?;
        }
        let mut survey = Survey::default();
        let mut reading = Entries::open(source, &self.replay.log, filter).await?;
        while let Some(piece) = reading.next(filter).await? {
            survey.look(&piece, filter, &mut self.report);
            self.look().await?;
            if self.stop.is_cancelled() {
                break;
            }
        }
        reading.close().await;
        if self.stop.is_cancelled() {
            return Ok(());
        }
        self.knows_the_sale(survey.sales.iter()).await?;
        for sale in survey.sales.clone() {
            if self.replay.store.was_purged(&sale).await? {
                survey.forget(sale);
            }
        }
        for id in &survey.forked {
            self.report.counts.refused += 1;
            self.report.trouble(format!(
                "{id}: two histories of it have ended differently: see `doorbuster order show`"
            ));
        }
        let total = filter.limit.map_or(survey.orders(), |limit| limit.min(survey.orders()));
        self.begin(survey.sales.clone(), total).await?;
        // What would be done is counted once.
        self.sales(&survey, self.run.is_none()).await?;
        for act in std::mem::take(&mut survey.acts).into_values() {
            let restored = self.replay.store.restore_act(&act, self.writing()).await;
            self.other(&act.sale_id, restored)?;
        }
        let mut taken = 0;
        self.write_those(&mut survey, Turn::Ended, &mut taken, total).await?;
        if self.run.is_some() {
            self.sales(&survey, true).await?;
        }
        for turn in [Turn::Live, Turn::Payments] {
            if !self.stop.is_cancelled() {
                self.write_those(&mut survey, turn, &mut taken, total).await?;
            }
        }
        Ok(())
    }

    fn writing(&self) -> Writing {
        match (self.run, &self.asked.source) {
            (None, _) => Writing::Not,
            (Some(_), super::Source::File(_)) => Writing::RowsAndLog,
            (Some(_), _) => Writing::Rows,
        }
    }

    /// Stock is lowered when those that have ended have made room for it.
    async fn sales(&mut self, survey: &Survey, lower: bool) -> Result<(), ReplayError> {
        for change in &survey.changes {
            let restored = self.replay.store.restore_sale(change, lower, self.writing()).await;
            self.other(&change.sale_id, restored)?;
        }
        Ok(())
    }

    async fn write_those(
        &mut self,
        survey: &mut Survey,
        turn: Turn,
        taken: &mut u64,
        total: u64,
    ) -> Result<(), ReplayError> {
        let filter = &self.asked.filter;
        let most =
            self.asked.rate.map_or(BATCH, |rate| usize::try_from(rate).unwrap_or(BATCH).clamp(1, BATCH));
        let mut reading = Entries::open(&self.asked.source, &self.replay.log, filter).await?;
        let mut batch = Vec::with_capacity(BATCH);
        'reading: while let Some(piece) = reading.next(filter).await? {
            let entries = piece.entries.into_iter().flatten();
            for entry in entries.filter(|entry| filter.takes_entry(entry) && turn.takes(entry)) {
                if let Entry::Payment(payment) = &entry {
                    if !survey.is_forgotten(entry.sale()) {
                        let restored = self.replay.store.restore_payment(payment, self.writing()).await;
                        self.other(entry.sale(), restored)?;
                    }
                } else if survey.decides(&entry) {
                    if filter.limit.is_some_and(|limit| *taken >= limit) {
                        break 'reading;
                    }
                    *taken += 1;
                    batch.push(entry);
                }
                if batch.len() >= most {
                    self.batch(&mut batch, total).await?;
                }
            }
            self.look().await?;
            if self.stop.is_cancelled() {
                break;
            }
        }
        reading.close().await;
        if !self.stop.is_cancelled() {
            self.batch(&mut batch, total).await?;
        }
        Ok(())
    }

    /// When the log begins, if it lacks what was before: it has forgotten something, or it was begun anew
    /// though there were sales already.
    async fn log_begins_after(&self, filter: &Filter) -> Result<Option<Millis>, ReplayError> {
        let head = self.replay.log.head().await?;
        if let Some(offset) = filter.offset {
            return Ok(head.at.filter(|_| offset < head.offset));
        }
        let since = filter.since.unwrap_or(Millis(0));
        let Some(at) = head.at.filter(|at| *at > since) else { return Ok(None) };
        let sales = self.replay.store.sales().await?;
        let older = sales.iter().any(|row| row.created_at.0 + CLOCKS_MS < at.0);
        Ok((head.offset > 0 || older).then_some(at))
    }

    /// Counts what differed of a sale, or of what happened to it.
    fn other(&mut self, sale: &SaleId, restored: Result<bool, StoreError>) -> Result<(), ReplayError> {
        match restored {
            Ok(changed) => self.report.counts.others += u64::from(changed),
            Err(StoreError::Broken(why)) => {
                self.report.counts.refused += 1;
                self.report.trouble(format!("{sale}: {why}"));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn batch(&mut self, batch: &mut Vec<Entry>, total: u64) -> Result<(), ReplayError> {
        if batch.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let orders = batch.len() as u64;
        let ids: Vec<_> = batch.iter().filter_map(Entry::order).map(|order| order.id).collect();
        // What is there already takes no lease and no transaction.
        let rows = self.rows(&ids).await?;
        batch.retain(|entry| !Self::is_settled(&mut self.report.counts, &rows, entry));
        if self.run.is_none() {
            let changed = batch.iter().filter_map(Entry::order).filter(|order| rows.contains_key(&order.id));
            let changed = changed.count() as u64;
            self.report.counts.changed += changed;
            self.report.counts.inserted += batch.len() as u64 - changed;
            batch.clear();
        }
        let mut pending = std::mem::take(batch);
        let mut backoff = Backoff::default();
        for tries in 1.. {
            if pending.is_empty() {
                break;
            }
            match self.write(&mut pending).await {
                Ok(()) if pending.is_empty() => break,
                // Somebody acts for the users of the rest.
                Ok(()) if tries < TRIES => {}
                Ok(()) => {
                    self.report.counts.busy += pending.len() as u64;
                    for order in pending.iter().filter_map(Entry::order) {
                        self.report.trouble(format!("{}: somebody else acts for its user", order.id));
                    }
                    break;
                }
                Err(
                    error @ (ReplayError::Store(StoreError::Away(_) | StoreError::Overdue)
                    | ReplayError::Lease(_)),
                ) if tries < TRIES => {
                    (self.progress.say)(&format!("waits: {error}"));
                }
                Err(error) => return Err(error),
            }
            self.pause(backoff.delay()).await?;
            if self.stop.is_cancelled() {
                return Ok(());
            }
        }
        self.next(orders, total, began.elapsed()).await?;
        Ok(())
    }

    /// Writes those whose users' leases are free; the others stay in `pending`.
    async fn write(&mut self, pending: &mut Vec<Entry>) -> Result<(), ReplayError> {
        let mut sales: BTreeMap<SaleId, BTreeSet<String>> = BTreeMap::new();
        for entry in pending.iter() {
            let Some(order) = entry.order() else { continue };
            sales.entry(order.sale.clone()).or_default().insert(order.user.to_string());
        }
        let mut guards: Vec<Guard> = Vec::new();
        let mut tokens: BTreeMap<(SaleId, String), i64> = BTreeMap::new();
        for (sale, users) in sales {
            let users: Vec<String> = users.into_iter().collect();
            for users in users.chunks(NAMES_AT_ONCE) {
                let names = users.iter().map(String::as_str);
                let taken = self.replay.leases.take(sale.as_str(), names, Terms::lasting(LEASE)).await?;
                let Some(guard) = taken.guard else { continue };
                for (user, _) in users.iter().zip(&taken.held).filter(|(_, held)| **held) {
                    tokens.insert((sale.clone(), user.clone()), guard.token());
                }
                guards.push(guard);
            }
        }
        let token = |order: &Order| tokens.get(&(order.sale.clone(), order.user.to_string())).copied();
        let (mut restores, mut busy) = (Vec::new(), Vec::new());
        for entry in pending.drain(..) {
            match (entry.order().and_then(token), entry) {
                (Some(fence), Entry::Order(entry)) => {
                    restores.push(Restore { entry: *entry, begins: false, fence });
                }
                (Some(fence), Entry::Accepted(order)) => {
                    restores.push(Restore { entry: confirmed(order), begins: true, fence });
                }
                (_, entry) => busy.push(entry),
            }
        }
        let written = self.commit(&restores, &guards, &mut busy).await;
        for guard in guards {
            let _ = guard.release().await;
        }
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
        &mut self,
        restores: &[Restore],
        guards: &[Guard],
        busy: &mut Vec<Entry>,
    ) -> Result<(), ReplayError> {
        let valid = || guards.iter().all(|guard| guard.is_valid_for(MARGIN));
        let relog = self.writing() == Writing::RowsAndLog;
        let restored = self.replay.store.restore_orders(restores, relog, &valid).await?;
        let mut settlements: BTreeMap<&SaleId, Vec<Settlement>> = BTreeMap::new();
        let mut owed: BTreeMap<&SaleId, Vec<Return>> = BTreeMap::new();
        for (restore, restored) in restores.iter().zip(restored) {
            let (order, counts) = (&restore.entry.order, &mut self.report.counts);
            match &restored {
                Restored::Inserted => counts.inserted += 1,
                Restored::Changed => counts.changed += 1,
                Restored::Same => count_row(counts, restore.entry.status),
                Restored::Stale => busy.push(into_entry(restore.clone())),
                Restored::Refused(why) => {
                    counts.refused += 1;
                    self.report.trouble(format!("{}: {why}", order.id));
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
        for (sale, settlements) in settlements {
            match self.replay.gate.settle(sale, &settlements).await {
                // A gate that is frozen, away or gone is told by the sweep, or rebuilt from the rows.
                Ok(_) | Err(GateError::Frozen | GateError::NotLoaded) => {}
                Err(error) => tracing::debug!(%sale, %error, "left to the sweep to settle"),
            }
        }
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
