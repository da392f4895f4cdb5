//! After an outage: what was accepted and has no row yet gets one, and a database that came back from a
//! backup is brought up to date. Everything here may be done twice: what is there already is left as it
//! is, so a replay that was interrupted is begun again without harm.
//!
//! | source | is | replaying it |
//! | --- | --- | --- |
//! | `outbox` | orders that the gate accepted and that have no row | publishes them again |
//! | `dead-letters` | messages that no worker could process | publishes them again, so often and no oftener |
//! | `log` | the order log, from a time or a message on | writes rows, as they were |
//! | `file` | the same as lines of a file, as `export` writes them | writes rows, as they were |

mod apply;
mod entries;
mod export;
mod pacer;
mod report;
mod request;
mod retry;
mod rows;
mod survey;
mod waiting;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::audit::{Audit, AuditError, audit};
use crate::control::DeadLetterError;
use crate::domain::{Millis, OrderId, SaleId};
use crate::gate::{Gate, GateError};
use crate::lease::{LeaseError, LeaseOptions, Leases};
use crate::queue::{DeadLetters, OrderLog, Publisher, QueueError};
use crate::store::{Run, RunState, Store, StoreError};

pub use export::{ExportError, Exported, export};
pub use report::{Counts, Report};
pub use request::{Filter, ReplayRequest, Source};

/// How a run has ended.
#[derive(Debug)]
pub struct Finished {
    pub id: Uuid,
    pub state: RunState,
    pub report: Report,
}

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("another replay of {0} is under way: see `doorbuster replay list`")]
    UnderWay(&'static str),
    #[error("there is no replay {0}")]
    NotFound(Uuid),
    #[error("replay {0} is done; begin another")]
    IsDone(Uuid),
    /// What it has written by then stays.
    #[error("replay {0} has failed: {1}; go on with: doorbuster replay resume {0}")]
    Failed(Uuid, Box<ReplayError>),
    /// Something that cannot be meant.
    #[error("{0}")]
    Usage(String),
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error("the database: {0}")]
    Store(#[from] StoreError),
    #[error("the broker: {0}")]
    Queue(#[from] QueueError),
    #[error(transparent)]
    DeadLetter(#[from] DeadLetterError),
}

/// How far a replay is, for whoever watches.
pub struct Progress<'a> {
    /// Once it is known how many orders there are, and once after each batch.
    pub advance: &'a (dyn Fn(u64, u64) + Sync),
    /// What it waits for.
    pub say: &'a (dyn Fn(&str) + Sync),
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Replay {
    pub gate: Gate,
    pub store: Store,
    pub leases: Leases,
    pub dead_letters: DeadLetters,
    pub publisher: Publisher,
    pub log: OrderLog,
}

/// One run of a replay: what it is asked for, and how far it has come.
struct Work<'a> {
    replay: &'a Replay,
    asked: &'a ReplayRequest,
    /// `None` where it only looks.
    run: Option<Uuid>,
    report: Report,
    brake: pacer::Pacer,
    stop: CancellationToken,
    progress: &'a Progress<'a>,
    told: Instant,
    /// When how many orders were published.
    published: std::collections::VecDeque<(Instant, u64)>,
}

/// No sale can have this id, so no buyer's lease is a replay's.
const SCOPE: &str = "_replay";

/// How often somebody's wish for the end is looked for.
const LOOK: Duration = Duration::from_secs(1);

/// How long another replay has to wait when this process dies.
const LEASE: Duration = Duration::from_secs(15);

impl Replay {
    /// What a run would do now, from the books. Changes nothing.
    pub async fn plan(
        &self,
        asked: &ReplayRequest,
        progress: &Progress<'_>,
        stop: CancellationToken,
    ) -> Result<Report, ReplayError> {
        asked.check()?;
        let mut work = Work::new(self, asked, None, stop, progress);
        work.go().await?;
        work.report.stopped = work.stop.is_cancelled();
        Ok(work.report)
    }

    /// Replays. `stop` ends it after the batch in hand; what is left is gone on with by
    /// [`Replay::resume`], or by beginning again.
    pub async fn run(
        &self,
        asked: &ReplayRequest,
        by: &str,
        progress: &Progress<'_>,
        stop: CancellationToken,
    ) -> Result<Finished, ReplayError> {
        asked.check()?;
        let now = Millis::now();
        let run = Run {
            id: Uuid::now_v7(),
            source: asked.source.name().to_owned(),
            settings: serde_json::to_string(asked).unwrap_or_default(),
            state: RunState::Running,
            report: None,
            by: by.to_owned(),
            cancel_asked: false,
            at: now,
            updated_at: now,
            ended_at: None,
        };
        self.alone(asked, &run, true, progress, stop).await
    }

    /// Goes on with a run that was stopped, cancelled, or whose process died, as it was asked for. It begins
    /// again from the beginning: what was done is there already, and what was left is told once more.
    pub async fn resume(
        &self,
        id: Uuid,
        progress: &Progress<'_>,
        stop: CancellationToken,
    ) -> Result<Finished, ReplayError> {
        let run = self.store.run(id).await?.ok_or(ReplayError::NotFound(id))?;
        let asked: ReplayRequest = serde_json::from_str(&run.settings)
            .map_err(|error| ReplayError::Usage(format!("replay {id} is of another build: {error}")))?;
        self.alone(&asked, &run, false, progress, stop).await
    }

    /// Of each source, one at a time.
    async fn alone(
        &self,
        asked: &ReplayRequest,
        run: &Run,
        new: bool,
        progress: &Progress<'_>,
        stop: CancellationToken,
    ) -> Result<Finished, ReplayError> {
        let name = asked.source.name();
        let options = LeaseOptions::lasting(LEASE).max_hold(Duration::from_secs(30 * 86_400));
        let Some(guard) = self.leases.take(SCOPE, [name], options).await?.guard else {
            return Err(ReplayError::UnderWay(name));
        };
        if new {
            self.store.begin_run(run).await?;
        } else if self.store.reopen_run(run.id).await?.is_none() {
            let _ = guard.release().await;
            return Err(ReplayError::IsDone(run.id));
        }
        let mut work = Work::new(self, asked, Some(run.id), stop.child_token(), progress);
        let ended = guard.until_lost(work.go_and_compare()).await;
        let result = match ended {
            Ok(result) => result,
            Err(error) => Err(error.into()),
        };
        let cancelled = work.stop.is_cancelled();
        let state = match &result {
            Ok(()) if !cancelled => RunState::Done,
            Ok(()) if stop.is_cancelled() => RunState::Stopped,
            Ok(()) => RunState::Cancelled,
            Err(_) => RunState::Failed,
        };
        let told = work.tell(state).await;
        let _ = guard.release().await;
        result.map_err(|error| match error {
            ReplayError::Usage(_) => error,
            error => ReplayError::Failed(run.id, Box::new(error)),
        })?;
        told?;
        Ok(Finished { id: run.id, state, report: work.report })
    }
}

impl<'a> Work<'a> {
    fn new(
        replay: &'a Replay,
        asked: &'a ReplayRequest,
        run: Option<Uuid>,
        stop: CancellationToken,
        progress: &'a Progress<'a>,
    ) -> Self {
        Self {
            replay,
            asked,
            run,
            report: Report::default(),
            brake: pacer::Pacer::new(asked),
            stop,
            progress,
            told: Instant::now(),
            published: Default::default(),
        }
    }

    async fn go_and_compare(&mut self) -> Result<(), ReplayError> {
        let began = Instant::now();
        self.go().await?;
        self.report.seconds = began.elapsed().as_secs_f64();
        self.report.after = self.audits().await?;
        Ok(())
    }

    async fn go(&mut self) -> Result<(), ReplayError> {
        match &self.asked.source {
            Source::Outbox => self.outbox().await,
            Source::DeadLetters => self.dead_letters().await,
            Source::Log | Source::File(_) => self.entries().await,
        }
    }

    /// The books of the sales that it touches; those of sales without a row are not there.
    async fn audits(&mut self) -> Result<Vec<Audit>, ReplayError> {
        let (gate, store) = (&self.replay.gate, &self.replay.store);
        let mut audits = Vec::new();
        for sale in &self.report.sales.clone() {
            let books = self.patiently(async || match audit(gate, store, sale).await {
                Ok(books) => Ok(Some(books)),
                Err(AuditError::NotFound(_)) => Ok(None),
                Err(AuditError::Gate(error)) => Err(error.into()),
                Err(AuditError::Store(error)) => Err(error.into()),
                Err(AuditError::Queue(error)) => Err(error.into()),
            });
            let Some(books) = books.await? else {
                self.report.trouble(format!("{sale}: it was ended before its books were compared"));
                break;
            };
            audits.extend(books);
        }
        Ok(audits)
    }

    /// A sale that is asked for is in what was found, or in the database: else its name is a mistake.
    async fn knows_the_sale<'s>(
        &self,
        mut found: impl Iterator<Item = &'s SaleId>,
    ) -> Result<(), ReplayError> {
        let Some(sale) = &self.asked.filter.sale else { return Ok(()) };
        if found.any(|known| known == sale) || self.replay.store.sale(sale).await?.is_some() {
            return Ok(());
        }
        Err(ReplayError::Usage(format!("nobody knows a sale {sale}")))
    }

    /// Before the first change: what it is about to touch, and how that stands.
    async fn begin(&mut self, sales: BTreeSet<SaleId>, orders: u64) -> Result<(), ReplayError> {
        self.report.sales = sales;
        // What it took to look is no time that was saved.
        self.brake = pacer::Pacer::new(self.asked);
        (self.progress.advance)(0, orders);
        if self.run.is_some() {
            self.report.before = self.audits().await?;
        }
        Ok(())
    }

    /// After each batch: paces, tells, and looks whether somebody has asked for the end. `false`: it is
    /// time to stop.
    async fn next(&mut self, orders: u64, total: u64, took: Duration) -> Result<bool, ReplayError> {
        (self.progress.advance)(self.report.counts.orders(), total);
        if self.run.is_none() {
            return Ok(!self.stop.is_cancelled());
        }
        self.look().await?;
        let pause = self.brake.after(orders, took);
        self.pause(pause).await?;
        Ok(!self.stop.is_cancelled())
    }

    /// Waits, until it is time to stop at the latest.
    async fn pause(&mut self, pause: Duration) -> Result<(), ReplayError> {
        let until = Instant::now() + pause;
        while !self.stop.is_cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let _ = self.stop.run_until_cancelled(tokio::time::sleep(left.min(LOOK))).await;
            self.look().await?;
        }
        Ok(())
    }

    /// Tells how far it is, about once a second, and looks whether somebody has asked for its end.
    async fn look(&mut self) -> Result<(), ReplayError> {
        if self.run.is_some() && self.told.elapsed() > LOOK {
            self.told = Instant::now();
            match self.tell(RunState::Running).await {
                Ok(true) => {
                    (self.progress.say)("somebody has asked for its end");
                    self.stop.cancel();
                }
                Ok(false) => {}
                // Told at the next look, when the database is there again: what writes waits for it.
                Err(error) if error.passes() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes down how far it has come; is its end asked for?
    async fn tell(&self, state: RunState) -> Result<bool, ReplayError> {
        let Some(run) = self.run else { return Ok(false) };
        // The books of many sales are long, and told to whoever waits for the end.
        let short = Report { before: Vec::new(), after: Vec::new(), ..self.report.clone() };
        let report = serde_json::to_string(&short).unwrap_or_default();
        Ok(self.replay.store.update_run(run, state, &report).await?)
    }
}

/// How each order's row stands, for those that have one.
type Rows = BTreeMap<OrderId, crate::store::OrderRow>;
