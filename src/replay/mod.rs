//! After an outage: what was accepted and has no row yet gets one, and a database that came back from a
//! backup is brought up to date. Everything here may be done twice: what is there already is left as it
//! is, so a replay that was interrupted is begun again without harm.
//!
//! | source | is | replaying it |
//! | --- | --- | --- |
//! | `outbox` | orders that the gate accepted and that have no row | publishes them again |
//! | `dead-letters` | messages that no worker could process | publishes them again, so often and no oftener |
//! | `log` | the order log, from a time or an offset on | writes rows, as they were |
//! | `file` | the same as lines of a file, as `export` writes them | writes rows, as they were |

mod apply;
mod brake;
mod entries;
mod export;
mod rows;
mod survey;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::audit::{Audit, audit};
use crate::control::LetterError;
use crate::domain::{Entry, Millis, Order, OrderId, SaleId, UserId};
use crate::gate::{Gate, GateError};
use crate::lease::{LeaseError, Leases, Terms};
use crate::queue::{Letters, OrderLog, Publisher, QueueError};
use crate::store::{Run, RunState, Store, StoreError};

pub use export::{ExportError, Exported, export};

/// Where what is replayed comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    Outbox,
    DeadLetters,
    Log,
    File(PathBuf),
}

impl Source {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::DeadLetters => "dead-letters",
            Self::Log => "log",
            Self::File(_) => "file",
        }
    }
}

/// What of it is replayed; nothing named is everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    pub sale: Option<SaleId>,
    pub user: Option<UserId>,
    pub order: Option<OrderId>,
    /// Of dead letters.
    pub reason: Option<String>,
    /// Of the log: published then or later. Of dead letters: given up. Of the others: accepted.
    pub since: Option<Millis>,
    pub until: Option<Millis>,
    /// Orders at most.
    pub limit: Option<u64>,
}

impl Filter {
    fn takes(&self, order: &Order) -> bool {
        self.sale.as_ref().is_none_or(|sale| *sale == order.sale)
            && self.user.as_ref().is_none_or(|user| *user == order.user)
            && self.order.is_none_or(|id| id == order.id)
    }

    fn takes_time(&self, at: Millis) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at <= until)
    }

    /// What is not about one order counts where no order is asked for.
    fn takes_entry(&self, entry: &Entry) -> bool {
        match entry.order() {
            Some(order) => self.takes(order),
            None => {
                self.user.is_none()
                    && self.order.is_none()
                    && self.sale.as_ref().is_none_or(|sale| sale == entry.sale())
            }
        }
    }
}

/// What a replay is asked for. Kept with the run, so that it can be gone on with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub source: Source,
    pub filter: Filter,
    /// Orders per second, at most.
    pub rate: Option<u32>,
    /// While more orders wait in the queue than this, nothing is published.
    pub max_queue: u32,
    /// A batch that took longer is followed by a pause as long.
    pub max_latency_ms: u64,
    /// A dead letter that was replayed so often is left where it is.
    pub max_replays: u32,
}

/// What became, or would become, of what a source holds. Orders are counted once, however often they
/// stand there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// They get a row: written, or on their way to a worker.
    pub inserted: u64,
    /// The row is older than the entry.
    pub changed: u64,
    /// Their rows are there.
    pub already: u64,
    /// Cancelled, expired or refunded: left so.
    pub ended: u64,
    /// Refused before: left so.
    pub failed: u64,
    /// Refused now, by the last line.
    pub refused: u64,
    /// Somebody else acted for their user the whole time: do it again.
    pub busy: u64,
    /// Nobody can read them.
    pub malformed: u64,
    /// Replayed too often.
    pub quarantined: u64,
    /// On the dead-letter queue: a source of its own.
    pub parked: u64,
    /// Sales, acts and payments that are brought up to date.
    pub others: u64,
}

impl Counts {
    /// What was not done, and is not done by itself.
    pub fn left(&self) -> u64 {
        self.refused + self.busy + self.malformed + self.quarantined
    }

    pub fn orders(&self) -> u64 {
        self.inserted + self.changed + self.already + self.ended + self.failed + self.refused + self.busy
    }
}

/// What a replay would do, or has done.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    pub counts: Counts,
    /// The first of what could not be done, with why.
    pub troubles: Vec<String>,
    /// The log begins later than it was asked for: what was before is not in it.
    pub begins_at: Option<Millis>,
    pub sales: BTreeSet<SaleId>,
    pub seconds: f64,
    /// It is not all, because somebody has asked for the end.
    #[serde(default)]
    pub stopped: bool,
    pub before: Vec<Audit>,
    pub after: Vec<Audit>,
}

/// Troubles that are told one by one.
const TOLD: usize = 20;

impl Report {
    fn trouble(&mut self, what: String) {
        if self.troubles.len() < TOLD {
            self.troubles.push(what.chars().take(300).collect());
        }
    }

    pub fn is_complete(&self) -> bool {
        self.counts.left() == 0 && self.begins_at.is_none() && !self.stopped
    }

    /// Sales whose books do not balance though nothing moves in them. Not those whose gate is to be
    /// rebuilt, whatever was replayed.
    pub fn out_of_balance(&self) -> impl Iterator<Item = &Audit> {
        self.after.iter().filter(|books| !books.needs_rebuild() && books.is_at_rest() && !books.balances())
    }
}

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
    Letter(#[from] LetterError),
}

/// How far a replay is, for whoever watches.
pub struct Progress<'a> {
    /// Once it is known how many orders there are, and once after each batch.
    pub tell: &'a (dyn Fn(u64, u64) + Sync),
    /// What it waits for.
    pub say: &'a (dyn Fn(&str) + Sync),
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Replay {
    pub gate: Gate,
    pub store: Store,
    pub leases: Leases,
    pub letters: Letters,
    pub publisher: Publisher,
    pub log: OrderLog,
}

/// One run of a replay: what it is asked for, and how far it has come.
struct Work<'a> {
    replay: &'a Replay,
    asked: &'a Asked,
    /// `None` where it only looks.
    run: Option<Uuid>,
    report: Report,
    brake: brake::Brake,
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
        asked: &Asked,
        progress: &Progress<'_>,
        stop: CancellationToken,
    ) -> Result<Report, ReplayError> {
        check(asked)?;
        let mut work = Work::new(self, asked, None, stop, progress);
        work.go().await?;
        work.report.stopped = work.stop.is_cancelled();
        Ok(work.report)
    }

    /// Replays. `stop` ends it after the batch in hand; what is left is gone on with by
    /// [`Replay::resume`], or by beginning again.
    pub async fn run(
        &self,
        asked: &Asked,
        by: &str,
        progress: &Progress<'_>,
        stop: CancellationToken,
    ) -> Result<Finished, ReplayError> {
        check(asked)?;
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
        let asked: Asked = serde_json::from_str(&run.settings)
            .map_err(|error| ReplayError::Usage(format!("replay {id} is of another build: {error}")))?;
        self.alone(&asked, &run, false, progress, stop).await
    }

    /// Of each source, one at a time.
    async fn alone(
        &self,
        asked: &Asked,
        run: &Run,
        new: bool,
        progress: &Progress<'_>,
        stop: CancellationToken,
    ) -> Result<Finished, ReplayError> {
        let name = asked.source.name();
        let terms = Terms::lasting(LEASE).at_most(Duration::from_secs(30 * 86_400));
        let Some(guard) = self.leases.take(SCOPE, [name], terms).await?.guard else {
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
        result?;
        told?;
        Ok(Finished { id: run.id, state, report: work.report })
    }
}

fn check(asked: &Asked) -> Result<(), ReplayError> {
    let filter = &asked.filter;
    let usage = |text: &str| Err(ReplayError::Usage(text.to_owned()));
    if let (Some(since), Some(until)) = (filter.since, filter.until)
        && since > until
    {
        return usage("--since is later than --until");
    }
    if filter.since.is_some_and(|since| since > Millis::now()) {
        return usage("--since is in the future");
    }
    if filter.reason.is_some() && asked.source != Source::DeadLetters {
        return usage("--reason is known of dead letters alone");
    }
    Ok(())
}

impl<'a> Work<'a> {
    fn new(
        replay: &'a Replay,
        asked: &'a Asked,
        run: Option<Uuid>,
        stop: CancellationToken,
        progress: &'a Progress<'a>,
    ) -> Self {
        Self {
            replay,
            asked,
            run,
            report: Report::default(),
            brake: brake::Brake::new(asked),
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
    async fn audits(&self) -> Result<Vec<Audit>, ReplayError> {
        let mut audits = Vec::new();
        for sale in &self.report.sales {
            match audit(&self.replay.gate, &self.replay.store, sale).await {
                Ok(books) => audits.push(books),
                Err(crate::audit::AuditError::NotFound(_)) => {}
                Err(crate::audit::AuditError::Gate(error)) => return Err(error.into()),
                Err(crate::audit::AuditError::Store(error)) => return Err(error.into()),
                Err(crate::audit::AuditError::Queue(error)) => return Err(error.into()),
            }
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
        (self.progress.tell)(0, orders);
        if self.run.is_some() {
            self.report.before = self.audits().await?;
        }
        Ok(())
    }

    /// After each batch: paces, tells, and looks whether somebody has asked for the end. `false`: it is
    /// time to stop.
    async fn next(&mut self, orders: u64, total: u64, took: Duration) -> Result<bool, ReplayError> {
        (self.progress.tell)(self.report.counts.orders(), total);
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
            if self.tell(RunState::Running).await? {
                (self.progress.say)("somebody has asked for its end");
                self.stop.cancel();
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
        Ok(self.replay.store.tell_run(run, state, &report).await?)
    }
}

/// How each order's row stands, for those that have one.
type Rows = BTreeMap<OrderId, crate::store::OrderRow>;
