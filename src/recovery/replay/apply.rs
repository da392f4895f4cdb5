//! From entries to rows: which of them are written, in what order, and so many at a time.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use futures_util::future::join_all;

use super::entries::{Entries, Piece};
use super::survey::{Survey, Turn};
use super::write::Writer;
use super::{Filter, LOOK, ReplayError, Report, Work};
use crate::domain::{CLOCK_SKEW, Entry, Millis, SaleId};
use crate::store::{StoreError, WriteMode};

/// Orders in one transaction.
const BATCH: usize = 800;

/// Transactions at once: while one waits for its COMMIT, another takes its leases.
const LANES: usize = 4;

impl Work<'_> {
    /// Reads several times: what became of each order in the end; then writes those that have ended, those
    /// that live, and what was paid for them. In the log the end of an order may stand behind the order
    /// that got its unit.
    pub(super) async fn entries(&mut self) -> Result<(), ReplayError> {
        let (source, filter) = (&self.asked.source, &self.asked.filter);
        if *source == super::Source::Log {
            let begins = self.patiently(async || self.log_begins_after(filter).await).await?;
            let Some(begins_at) = begins else { return Ok(()) };
            self.report.begins_at = begins_at;
        }
        let mut survey = Survey::default();
        let log = &self.replay.log;
        let reading = self.patiently(async || Entries::open(source, log, filter).await).await?;
        let Some(mut reading) = reading else { return Ok(()) };
        while let Some(piece) = self.next_of(&mut reading).await? {
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
        let (store, writing) = (&self.replay.store, self.writing());
        for act in std::mem::take(&mut survey.acts).into_values() {
            self.other(&act.sale_id, async || store.restore_act(&act, writing).await).await?;
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

    /// `None` at the end, and when it is time to stop.
    async fn next_of(&self, reading: &mut Entries) -> Result<Option<Piece>, ReplayError> {
        let next = self.patiently(async || reading.next(&self.asked.filter).await).await?;
        Ok(next.flatten())
    }

    fn writing(&self) -> WriteMode {
        match (self.run, &self.asked.source) {
            (None, _) => WriteMode::DryRun,
            (Some(_), super::Source::File(_)) => WriteMode::RowsAndLog,
            (Some(_), _) => WriteMode::Rows,
        }
    }

    /// Stock is lowered when those that have ended have made room for it.
    async fn sales(&mut self, survey: &Survey, lower: bool) -> Result<(), ReplayError> {
        let (store, writing) = (&self.replay.store, self.writing());
        for change in &survey.changes {
            self.other(&change.sale_id, async || store.restore_sale(change, lower, writing).await).await?;
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
        if !survey.turns.contains(&turn) {
            return Ok(());
        }
        let filter = &self.asked.filter;
        // Those that end change the units of their items one by one: two such transactions could wait for
        // each other.
        let (most, lanes) = match self.asked.rate {
            Some(rate) => (usize::try_from(rate).unwrap_or(BATCH).clamp(1, BATCH), 1),
            None if turn == Turn::Live => (BATCH, LANES.min(self.replay.store.writers())),
            None => (BATCH, 1),
        };
        let (source, log) = (&self.asked.source, &self.replay.log);
        let reading = self.patiently(async || Entries::open(source, log, filter).await).await?;
        let Some(mut reading) = reading else { return Ok(()) };
        let (store, writing) = (&self.replay.store, self.writing());
        let mut entries = Vec::new();
        'reading: while let Some(piece) = self.next_of(&mut reading).await? {
            let read = piece.entries.into_iter().flatten();
            for entry in read.filter(|entry| filter.takes_entry(entry) && Turn::of(entry) == Some(turn)) {
                if let Entry::Payment(payment) = &entry {
                    if !survey.is_forgotten(entry.sale()) {
                        let restore = async || store.restore_payment(payment, writing).await;
                        self.other(entry.sale(), restore).await?;
                    }
                } else if survey.decides(&entry) {
                    if filter.limit.is_some_and(|limit| *taken >= limit) {
                        break 'reading;
                    }
                    *taken += 1;
                    entries.push(entry);
                    if entries.len() >= most * lanes {
                        self.write(&mut entries, (most, lanes), total).await?;
                    }
                }
            }
            self.look().await?;
            if self.stop.is_cancelled() {
                break;
            }
        }
        reading.close().await;
        if !self.stop.is_cancelled() {
            self.write(&mut entries, (most, lanes), total).await?;
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
        let older = sales.iter().any(|row| row.created_at.plus(CLOCK_SKEW) < at);
        Ok((head.offset > 0 || older).then_some(at))
    }

    /// Brings a sale, or what happened to it, to what the log has, and counts what differed; where the answer of
    /// a COMMIT was lost and it is tried again, nothing differs any more.
    async fn other(
        &mut self,
        sale: &SaleId,
        mut restore: impl AsyncFnMut() -> Result<bool, StoreError>,
    ) -> Result<(), ReplayError> {
        if self.stop.is_cancelled() {
            return Ok(());
        }
        match self.patiently(async || Ok(restore().await?)).await {
            Ok(changed) => self.report.counts.others += u64::from(changed == Some(true)),
            Err(ReplayError::Store(StoreError::Broken(why))) => {
                self.report.counts.refused += 1;
                self.report.trouble(format!("{sale}: {why}"));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Shares the entries out among the lanes, those of a user to the same one: two lanes cannot have his lease.
    /// The next are read when all of these have ended.
    async fn write(
        &mut self,
        entries: &mut Vec<Entry>,
        (most, lanes): (usize, usize),
        total: u64,
    ) -> Result<(), ReplayError> {
        let (began, orders) = (Instant::now(), entries.len() as u64);
        if orders == 0 {
            return Ok(());
        }
        let writer = Writer {
            replay: self.replay,
            writing: self.writing(),
            progress: self.progress,
            stop: self.stop.clone(),
        };
        let mut shares = vec![Vec::new(); lanes];
        for entry in entries.drain(..) {
            let mut hasher = DefaultHasher::new();
            entry.order().map(|order| order.user.as_str()).hash(&mut hasher);
            if let Some(share) = shares.get_mut(hasher.finish() as usize % lanes) {
                share.push(entry);
            }
        }
        let looking = async {
            loop {
                tokio::time::sleep(LOOK).await;
                // What cannot be told meanwhile is told after the batches.
                let _ = self.look().await;
            }
        };
        let mut told = vec![Report::default(); lanes];
        let writing =
            shares.into_iter().zip(&mut told).map(|(share, told)| writer.batches(share, most, told));
        // None is given up because another one fails.
        let ended = tokio::select! {
            ended = join_all(writing) => ended,
            () = looking => Vec::new(), // Never.
        };
        told.into_iter().for_each(|told| self.report.add(told));
        ended.into_iter().collect::<Result<(), _>>()?;
        self.next(orders, total, began.elapsed()).await?;
        Ok(())
    }
}
