//! From entries to rows: which rows are written, in which order, and how many at a time.
//!
//! The entries are read several times: a survey first, then one pass each for the ended orders, the live orders, and
//! the payments. In the log, the end of an order may come after the order that got its unit.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use futures_util::future::join_all;

use super::batch_size::BATCH;
use super::error::ReplayError;
use super::reader::{EntryReader, Record};
use super::report::Report;
use super::request::{Filter, Source};
use super::survey::{Pass, Survey};
use super::work::{CHECK_EVERY, Work};
use super::write::Writer;
use crate::domain::{Entry, Millis, PaymentEntry, SaleId};
use crate::recovery::reach::log_begins_at;
use crate::store::{StoreError, WriteMode};

/// Concurrent transactions: while one waits for its COMMIT, another takes its leases.
const LANES: usize = 4;

/// How one pass writes.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    batch: usize,
    lanes: usize,
}

impl Lanes {
    pub(super) fn at_once(self) -> usize {
        self.batch * self.lanes
    }
}

impl Work<'_> {
    pub(super) async fn entries(&mut self) -> Result<(), ReplayError> {
        let Some(mut survey) = self.survey().await? else { return Ok(()) };
        self.require_sale(survey.sales.iter()).await?;
        if self.request.source == Source::Log {
            self.compare_with_witnesses(&survey).await?;
        }
        for sale in survey.sales.clone() {
            if self.replay.store.was_purged(&sale).await? {
                survey.purge(sale);
            }
        }
        for id in &survey.forked {
            self.report.counts.refused += 1;
            self.report.trouble(format!(
                "{id}: it has two histories with different ends: see `doorbuster order show`"
            ));
        }
        let limit = self.request.filter.limit;
        let total = limit.map_or(survey.orders(), |limit| limit.min(survey.orders()));
        self.begin(survey.sales.clone(), total).await?;
        // A plan goes through the sales only once, so that it counts each change once.
        self.restore_sales(&survey, self.run.is_none()).await?;
        let (store, writing) = (&self.replay.store, self.writing());
        for act in std::mem::take(&mut survey.acts).into_values() {
            self.restore_other(&act.sale_id, async || store.restore_act(&act, writing).await).await?;
        }
        let mut taken = 0;
        self.write_pass(&mut survey, Pass::Ended, &mut taken, total).await?;
        self.announce_line().await?;
        self.write_ends_in_gate(&mut survey, &mut taken, total).await?;
        self.add_changes_in_gate(&mut survey).await?;
        if self.run.is_some() {
            self.restore_sales(&survey, true).await?;
        }
        for pass in [Pass::Live, Pass::Payments] {
            if !self.stop.is_cancelled() {
                self.write_pass(&mut survey, pass, &mut taken, total).await?;
            }
        }
        self.count_vanished(&survey);
        self.begin_line().await
    }

    /// Every order and payment that the survey found must have been met by a later pass. Otherwise the log was cut, or
    /// the file changed, while it was read.
    fn count_vanished(&mut self, survey: &Survey) {
        let vanished = survey.unmet();
        if vanished == 0 || self.stop.is_cancelled() || self.request.filter.limit.is_some() {
            return;
        }
        self.report.counts.vanished = vanished;
        let source = self.request.source.name();
        self.report.trouble(format!(
            "the {source} no longer has {vanished} of the orders and payments that it had at first"
        ));
    }

    /// The first pass. `None`: it is time to stop.
    async fn survey(&mut self) -> Result<Option<Survey>, ReplayError> {
        let filter = &self.request.filter;
        if self.request.source == Source::Log {
            let begins = self.retrying(async || self.log_begins_after(filter).await).await?;
            let Some(begins_at) = begins else { return Ok(None) };
            self.report.begins_at = begins_at;
        }
        let Some(mut reader) = self.open().await? else { return Ok(None) };
        let (mut survey, mut read) = (Survey::default(), 0);
        while let Some(record) = self.next_of(&mut reader).await? {
            survey.add(&record, filter, &mut self.report);
            read += record.entries.len() as u64;
            (self.progress.read)("entries surveyed", read);
            self.check_in().await?;
            if self.stop.is_cancelled() {
                break;
            }
        }
        reader.close().await;
        Ok((!self.stop.is_cancelled()).then_some(survey))
    }

    /// Opens the source. `None`: it is time to stop.
    pub(super) async fn open(&self) -> Result<Option<EntryReader>, ReplayError> {
        let (request, log) = (self.request, &self.replay.log);
        self.retrying(async || EntryReader::open(&request.source, log, &request.filter).await).await
    }

    /// `None` at the end of the source, and when it is time to stop.
    pub(super) async fn next_of(&self, reader: &mut EntryReader) -> Result<Option<Record>, ReplayError> {
        let next = self.retrying(async || reader.next(&self.request.filter).await).await?;
        Ok(next.flatten())
    }

    fn writing(&self) -> WriteMode {
        match (self.run, &self.request.source) {
            (None, _) => WriteMode::DryRun,
            (Some(_), Source::File(_)) => WriteMode::RowsAndLog,
            (Some(_), _) => WriteMode::Rows,
        }
    }

    /// Stock is lowered only with `lower`, which is set once the ended orders have made room for that.
    async fn restore_sales(&mut self, survey: &Survey, lower: bool) -> Result<(), ReplayError> {
        let (store, writing) = (&self.replay.store, self.writing());
        for change in &survey.changes {
            let restore = async || store.restore_sale(change, lower, writing).await;
            self.restore_other(&change.sale_id, restore).await?;
        }
        Ok(())
    }

    pub(super) fn lanes(&self) -> Lanes {
        match self.request.rate {
            Some(rate) => Lanes { batch: usize::try_from(rate).unwrap_or(BATCH).clamp(1, BATCH), lanes: 1 },
            None => Lanes { batch: BATCH, lanes: LANES.min(self.replay.store.writers()) },
        }
    }

    async fn write_pass(
        &mut self,
        survey: &mut Survey,
        pass: Pass,
        taken: &mut u64,
        total: u64,
    ) -> Result<(), ReplayError> {
        if !survey.passes.contains(&pass) {
            return Ok(());
        }
        let (filter, lanes) = (&self.request.filter, self.lanes());
        let Some(mut reader) = self.open().await? else { return Ok(()) };
        let (mut entries, mut payments) = (Vec::new(), Vec::new());
        'reading: while let Some(record) = self.next_of(&mut reader).await? {
            let read = record.entries.into_iter().flatten();
            for entry in read.filter(|entry| filter.passes_entry(entry) && Pass::of(entry) == Some(pass)) {
                if let Entry::Payment(payment) = entry {
                    survey.meet_payment();
                    if !survey.is_purged(&payment.sale_id) {
                        payments.push(*payment);
                    }
                    if payments.len() >= lanes.batch {
                        self.write_payments(&mut payments).await?;
                    }
                } else if survey.decides(&entry) {
                    if filter.limit.is_some_and(|limit| *taken >= limit) {
                        break 'reading;
                    }
                    *taken += 1;
                    entries.push(entry);
                    if entries.len() >= lanes.at_once() {
                        self.write(&mut entries, lanes, total).await?;
                    }
                }
            }
            self.check_in().await?;
            if self.stop.is_cancelled() {
                break;
            }
        }
        reader.close().await;
        if !self.stop.is_cancelled() {
            self.write(&mut entries, lanes, total).await?;
            self.write_payments(&mut payments).await?;
        }
        Ok(())
    }

    /// Writes the payment events, a batch at a time, and counts those that differed.
    async fn write_payments(&mut self, payments: &mut Vec<PaymentEntry>) -> Result<(), ReplayError> {
        let (store, writing) = (&self.replay.store, self.writing());
        let mut pending = payments.as_slice();
        while !pending.is_empty() && !self.stop.is_cancelled() {
            let mut size = 0;
            let restored = self.retrying(async || {
                size = self.payments.now().min(pending.len());
                let restored = store.restore_payments(pending.get(..size).unwrap_or_default(), writing).await;
                if restored.is_err() {
                    self.payments.shrink_from(size);
                }
                Ok(restored?)
            });
            let Some(restored) = restored.await? else { break };
            self.payments.grow_from(size);
            self.report.counts.others += restored.changed;
            for (payment, why) in restored.refused {
                self.report.counts.refused += 1;
                self.report.trouble(format!("{}: {why}", payment.sale_id));
            }
            pending = pending.get(size..).unwrap_or_default();
            self.check_in().await?;
        }
        payments.clear();
        Ok(())
    }

    /// The start of the log, if it lacks earlier entries: some have expired, or the log was started again when there
    /// were sales already.
    pub(super) async fn log_begins_after(&self, filter: &Filter) -> Result<Option<Millis>, ReplayError> {
        if let Some(offset) = filter.offset {
            let head = self.replay.log.head().await?;
            return Ok(head.at.filter(|_| offset < head.offset));
        }
        let since = filter.since.unwrap_or(Millis(0));
        let begins_at = log_begins_at(&self.replay.log, &self.replay.store).await?;
        Ok(begins_at.filter(|at| *at > since))
    }

    /// Brings a sale or an act up to date, and counts it if it differed. If the answer to a COMMIT is
    /// lost, the retry finds no difference, and the change is not counted.
    pub(super) async fn restore_other(
        &mut self,
        sale: &SaleId,
        mut restore: impl AsyncFnMut() -> Result<bool, StoreError>,
    ) -> Result<(), ReplayError> {
        if self.stop.is_cancelled() {
            return Ok(());
        }
        match self.retrying(async || Ok(restore().await?)).await {
            Ok(changed) => self.report.counts.others += u64::from(changed == Some(true)),
            Err(ReplayError::Store(StoreError::Broken(why))) => {
                self.report.counts.refused += 1;
                self.report.trouble(format!("{sale}: {why}"));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Writes `entries` in concurrent lanes, and returns when all of them have ended.
    pub(super) async fn write(
        &mut self,
        entries: &mut Vec<Entry>,
        lanes: Lanes,
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
            size: self.size.clone(),
        };
        let shares = share_out(entries, lanes.lanes);
        let mut reports = vec![Report::default(); lanes.lanes];
        let writing = shares
            .into_iter()
            .zip(&mut reports)
            .map(|(share, report)| writer.batches(share, lanes.batch, report));
        let checking = async {
            loop {
                tokio::time::sleep(CHECK_EVERY).await;
                // A persistent error comes back at the check after the batches.
                let _ = self.check_in().await;
            }
        };
        // A lane that fails does not stop the others.
        let ended = tokio::select! {
            ended = join_all(writing) => ended,
            () = checking => Vec::new(), // Never.
        };
        reports.into_iter().for_each(|report| self.report.add(report));
        ended.into_iter().collect::<Result<(), _>>()?;
        self.after_batch(orders, total, began.elapsed()).await?;
        Ok(())
    }
}

/// All orders of a user go to the same lane, because two lanes cannot hold the user's lease.
fn share_out(entries: &mut Vec<Entry>, lanes: usize) -> Vec<Vec<Entry>> {
    let mut shares = vec![Vec::new(); lanes];
    for entry in entries.drain(..) {
        let mut hasher = DefaultHasher::new();
        entry.order().map(|order| order.user.as_str()).hash(&mut hasher);
        if let Some(share) = shares.get_mut(hasher.finish() as usize % lanes) {
            share.push(entry);
        }
    }
    shares
}
