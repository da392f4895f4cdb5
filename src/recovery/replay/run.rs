//! Plans, runs and resumes a replay.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::error::ReplayError;
use super::parts::{Progress, Replay};
use super::report::Report;
use super::request::{ReplayRequest, Source};
use super::work::Work;
use crate::domain::Millis;
use crate::lease::LeaseOptions;
use crate::store::{Run, RunState, StoreError};

/// The scope of the leases of replays. No sale can have this id, so it never collides with a buyer's lease.
const SCOPE: &str = "_replay";

/// If this process dies, another replay of the same source may begin after this time.
const LEASE: Duration = Duration::from_secs(15);

/// The watchdog renews the lease of a running replay for at most this long.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// How a run ended.
#[derive(Debug)]
pub struct Finished {
    /// The run.
    pub id: Uuid,
    /// `Done`, `Stopped` or `Cancelled`.
    pub state: RunState,
    /// What it did.
    pub report: Report,
}

impl Replay {
    /// What a run would do now. Changes nothing.
    pub async fn plan(
        &self,
        request: &ReplayRequest,
        progress: &Progress<'_>,
        stop: CancellationToken,
    ) -> Result<Report, ReplayError> {
        request.check()?;
        let request = self.with_beginning(request).await?;
        let mut work = Work::new(self, &request, None, stop, progress);
        work.go().await?;
        work.report.stopped = work.stop.is_cancelled();
        Ok(work.report)
    }

    /// Replays. Cancelling `stop` ends the run after the current batch; [`Replay::resume`] or a new run does the
    /// rest. `by` is recorded as the operator.
    pub async fn run(
        &self,
        request: &ReplayRequest,
        by: &str,
        progress: &Progress<'_>,
        stop: CancellationToken,
    ) -> Result<Finished, ReplayError> {
        request.check()?;
        let request = self.with_beginning(request).await?;
        let now = Millis::now();
        let run = Run {
            id: Uuid::now_v7(),
            source: request.source.name().to_owned(),
            settings: serde_json::to_string(&request).unwrap_or_default(),
            state: RunState::Running,
            report: None,
            by: by.to_owned(),
            cancel_asked: false,
            at: now,
            updated_at: now,
            ended_at: None,
        };
        let work = Work::new(self, &request, Some(run.id), stop.child_token(), progress);
        self.exclusively(work, run.id, Some(&run), &stop).await
    }

    /// Resumes a run with its original request, after it failed, was stopped or cancelled, or its process died. It
    /// starts at the beginning of its source: finished orders count as already there, and the ones left are reported
    /// again.
    pub async fn resume(
        &self,
        id: Uuid,
        progress: &Progress<'_>,
        stop: CancellationToken,
    ) -> Result<Finished, ReplayError> {
        let run = self.store.run(id).await?.ok_or(ReplayError::NotFound(id))?;
        let request: ReplayRequest = serde_json::from_str(&run.settings)
            .map_err(|error| ReplayError::Usage(format!("replay {id} is from another build: {error}")))?;
        let work = Work::new(self, &request, Some(id), stop.child_token(), progress);
        self.exclusively(work, id, None, &stop).await
    }

    /// Runs `work` under the lease of its source. `new` is the run to record; without it, run `id` is reopened.
    async fn exclusively(
        &self,
        mut work: Work<'_>,
        id: Uuid,
        new: Option<&Run>,
        stop: &CancellationToken,
    ) -> Result<Finished, ReplayError> {
        let name = work.request.source.name();
        let options = LeaseOptions::lasting(LEASE).max_hold(LONGEST);
        let Some(guard) = self.leases.take(SCOPE, [name], options).await?.guard else {
            return Err(ReplayError::UnderWay(name));
        };
        if let Some(run) = new {
            self.store.begin_run(run).await?;
        } else if self.store.reopen_run(id).await?.is_none() {
            let _ = guard.release().await;
            return Err(ReplayError::IsDone(id));
        }
        // Of millions of orders nothing is written down for nobody.
        self.store.announce_to_webhooks(self.store.has_endpoints().await.unwrap_or(true));
        let result = match guard.until_lost(work.go_and_compare()).await {
            Ok(result) => result,
            Err(lost) => Err(lost.into()),
        };
        let state = match &result {
            Ok(()) if !work.stop.is_cancelled() => RunState::Done,
            Ok(()) if stop.is_cancelled() => RunState::Stopped,
            Ok(()) => RunState::Cancelled,
            Err(_) => RunState::Failed,
        };
        let recorded = work.record(state).await;
        let _ = guard.release().await;
        result.map_err(|error| match error {
            ReplayError::Usage(_) | ReplayError::RestoredMeanwhile => error,
            ReplayError::Store(StoreError::Behind(behind)) if behind.is_of_replay() => {
                ReplayError::RestoredMeanwhile
            }
            error => ReplayError::Failed(id, Box::new(error)),
        })?;
        recorded?;
        Ok(Finished { id, state, report: work.report })
    }
}

impl Work<'_> {
    async fn go_and_compare(&mut self) -> Result<(), ReplayError> {
        let began = Instant::now();
        self.go().await?;
        self.report.seconds = began.elapsed().as_secs_f64();
        self.report.after = self.audits().await?;
        Ok(())
    }

    async fn go(&mut self) -> Result<(), ReplayError> {
        match &self.request.source {
            Source::Outbox => self.outbox().await,
            Source::DeadLetters => self.dead_letters().await,
            Source::Log | Source::File(_) => self.entries().await,
        }
    }
}
