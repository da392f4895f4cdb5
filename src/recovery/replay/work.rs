//! The work of one plan or run, shared by all sources. It paces, records progress, notices a cancellation, retries
//! while a server is unavailable, and reads the books.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::batch_size::{BATCH, BatchSize};
use super::error::ReplayError;
use super::pacer::Pacer;
use super::parts::{Progress, Replay};
use super::report::Report;
use super::request::ReplayRequest;
use crate::audit::{Audit, AuditError, audit_knowing};
use crate::domain::SaleId;
use crate::recovery::retry::Retry;
use crate::store::RunState;

/// How often progress is recorded and a cancellation is checked for.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Work<'a> {
    pub(super) replay: &'a Replay,
    pub(super) request: &'a ReplayRequest,
    /// `None` for a plan, which writes nothing.
    pub(super) run: Option<Uuid>,
    pub(super) report: Report,
    /// Cancelled to stop after the current batch.
    pub(super) stop: CancellationToken,
    pub(super) progress: &'a Progress<'a>,
    /// When orders were published, and how many, while the broker's depths may not include them yet.
    pub(super) published: VecDeque<(Instant, u64)>,
    /// Orders in one transaction, and payments.
    pub(super) size: Arc<BatchSize>,
    pub(super) payments: BatchSize,
    pacer: Pacer,
    recorded_at: Instant,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        replay: &'a Replay,
        request: &'a ReplayRequest,
        run: Option<Uuid>,
        stop: CancellationToken,
        progress: &'a Progress<'a>,
    ) -> Self {
        Self {
            replay,
            request,
            run,
            report: Report::default(),
            stop,
            progress,
            published: VecDeque::new(),
            size: Arc::new(BatchSize::new(BATCH)),
            payments: BatchSize::new(BATCH),
            pacer: Pacer::new(request),
            recorded_at: Instant::now(),
        }
    }

    /// Retries while a server is unavailable. `None`: it is time to stop.
    pub(super) async fn retrying<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, ReplayError>,
    ) -> Result<Option<T>, ReplayError> {
        let mut retry = Retry::default();
        loop {
            match attempt().await {
                Err(error) if error.is_transient() && retry.may_retry() => {
                    (self.progress.say)(&format!("waiting: {error}"));
                }
                attempted => return attempted.map(Some),
            }
            if !retry.pause(&self.stop).await {
                return Ok(None);
            }
        }
    }

    /// The books of the sales that the replay touches. Sales without a row are left out.
    pub(super) async fn audits(&mut self) -> Result<Vec<Audit>, ReplayError> {
        let (gate, store, read) = (&self.replay.gate, &self.replay.store, self.progress.read);
        let mut audits = Vec::new();
        for sale in &self.report.sales.clone() {
            let books = self.retrying(async || match audit_knowing(gate, store, sale, None, read).await {
                Ok((books, _)) => Ok(Some(books)),
                Err(AuditError::NotFound(_)) => Ok(None),
                Err(AuditError::Gate(error)) => Err(error.into()),
                Err(AuditError::Store(error)) => Err(error.into()),
                Err(AuditError::Queue(error)) => Err(error.into()),
            });
            let Some(books) = books.await? else {
                self.report.trouble(format!("{sale}: the replay stopped before its books were compared"));
                break;
            };
            audits.extend(books);
        }
        Ok(audits)
    }

    /// Fails if the request names a sale that neither `found` nor the database has: the name must be a mistake.
    pub(super) async fn require_sale<'s>(
        &self,
        mut found: impl Iterator<Item = &'s SaleId>,
    ) -> Result<(), ReplayError> {
        let Some(sale) = &self.request.filter.sale else { return Ok(()) };
        if found.any(|known| known == sale) || self.replay.store.sale(sale).await?.is_some() {
            return Ok(());
        }
        Err(ReplayError::Usage(format!("there is no sale {sale}, neither in the source nor in the database")))
    }

    /// Called before the first change: reports the total, and reads the books of the sales concerned.
    pub(super) async fn begin(&mut self, sales: BTreeSet<SaleId>, orders: u64) -> Result<(), ReplayError> {
        self.report.sales = sales;
        // The replay must not go faster to make up for the time that the survey took.
        self.pacer = Pacer::new(self.request);
        (self.progress.advance)(0, orders);
        if self.run.is_some() {
            self.report.before = self.audits().await?;
        }
        Ok(())
    }

    /// Called after each batch of `orders`: reports progress and pauses as the request demands. `false`: it is time
    /// to stop.
    pub(super) async fn after_batch(
        &mut self,
        orders: u64,
        total: u64,
        took: Duration,
    ) -> Result<bool, ReplayError> {
        (self.progress.advance)(self.report.counts.orders(), total);
        if self.run.is_none() {
            return Ok(!self.stop.is_cancelled());
        }
        self.check_in().await?;
        let pause = self.pacer.after(orders, took);
        self.pause(pause).await?;
        Ok(!self.stop.is_cancelled())
    }

    /// Waits, but only until it is time to stop.
    pub(super) async fn pause(&mut self, pause: Duration) -> Result<(), ReplayError> {
        let until = Instant::now() + pause;
        while !self.stop.is_cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let _ = self.stop.run_until_cancelled(tokio::time::sleep(left.min(CHECK_EVERY))).await;
            self.check_in().await?;
        }
        Ok(())
    }

    /// About once a second, records the progress, and stops if the run was cancelled.
    pub(super) async fn check_in(&mut self) -> Result<(), ReplayError> {
        if self.run.is_some() && self.recorded_at.elapsed() > CHECK_EVERY {
            self.recorded_at = Instant::now();
            match self.record(RunState::Running).await {
                Ok(true) => {
                    (self.progress.say)("the replay was cancelled");
                    self.stop.cancel();
                }
                Ok(false) => {}
                // It is recorded at the next check; the batches themselves wait for the database.
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Records the state and the report of the run. `true`: a cancellation was requested.
    pub(super) async fn record(&self, state: RunState) -> Result<bool, ReplayError> {
        let Some(run) = self.run else { return Ok(false) };
        // The books of many sales are long; only the caller gets them.
        let short = Report { before: Vec::new(), after: Vec::new(), ..self.report.clone() };
        let report = serde_json::to_string(&short).unwrap_or_default();
        let cancelled = self.replay.store.update_run(run, state, &report).await?;
        cancelled.ok_or(ReplayError::RestoredMeanwhile)
    }
}
