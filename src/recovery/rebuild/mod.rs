//! Rebuilding a gate that lost writes, or everything. The sale is frozen from the first step to the last.
//!
//! The order of steps is what makes it right, and each step may be repeated:
//!
//! 1. The sale is frozen, in an epoch higher than every one that is known: whoever rebuilds with an older
//!    view finds that out when he loads. A frozen gate takes no order, settles none, takes nothing back.
//! 2. The outbox, the order log and the dead-letter queue are read, and **then** the database: in the
//!    other order an order that is committed in between would be in neither.
//! 3. Users hold their live rows and what has no row yet; what is left is the stock without those units.
//!    All of it is loaded in one step, if the epoch is still the same.
//! 4. The books are compared, and the sale goes back to the state that its row has.
//!
//! Nobody waits for queues to run dry: what is retried or parked never would. An order that nothing
//! remembered but a message in a queue is adopted when it gets its row.

mod gather;
mod load;

use std::time::Duration;

use crate::audit::{Audit, AuditError, audit};
use crate::domain::{ActRequest, Millis, Number, OrderId, SaleId, SaleState};
use crate::gate::{Gate, GateError, Moved, RebuildStart};
use crate::lease::{Guard, LeaseError, LeaseOptions, Leases};
use crate::queue::{DeadLetters, OrderLog, QueueError};
use crate::store::{ActState, BegunAct, NotBegun, SaleRow, Store, StoreError};

pub use gather::Gathered;
pub use load::Loaded;

/// No sale can have this id, so no buyer's lease is a rebuild's.
const SCOPE: &str = "_rebuild";
const LEASE: Duration = Duration::from_secs(15);

/// Times that the database is read again because orders without any other trace got their rows meanwhile.
const TRIES: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    #[error("there is no sale {0}")]
    NotFound(SaleId),
    #[error("a sale that is {0} is not in the gate: there is nothing to rebuild")]
    NotLoaded(SaleState),
    #[error("another rebuild of {0} is under way")]
    UnderWay(SaleId),
    #[error(
        "the order log has {0} newer than its row: bring the database up to date first, with `doorbuster replay run log`"
    )]
    DatabaseBehind(OrderId),
    #[error("the books do not balance after the rebuild; the sale stays frozen: see `doorbuster audit --sale {}`", .0.sale_id)]
    OutOfBalance(Box<Audit>),
    /// Somebody has closed it, or Redis was set back once more; the sale stays frozen.
    #[error("the gate was changed while it was being rebuilt: do it again")]
    Moved,
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error("the database: {0}")]
    Store(#[from] StoreError),
    #[error("the broker: {0}")]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl From<AuditError> for RebuildError {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::NotFound(sale) => Self::NotFound(sale),
            AuditError::Gate(error) => Self::Gate(error),
            AuditError::Store(error) => Self::Store(error),
            AuditError::Queue(error) => Self::Queue(error),
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Rebuild {
    pub gate: Gate,
    pub store: Store,
    pub leases: Leases,
    pub dead_letters: DeadLetters,
    pub log: OrderLog,
}

/// A sale that is frozen for its rebuild.
pub struct Rebuilding {
    sale: SaleId,
    epoch: i64,
    guard: Guard,
    /// What the gate was before it was frozen, where it knew.
    before: Option<SaleState>,
}

/// What a rebuild has done.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Rebuilt {
    pub sale_id: SaleId,
    pub state: SaleState,
    #[serde(flatten)]
    pub number: Number,
    pub users: usize,
    /// Orders without a row.
    pub in_flight: usize,
    /// The log begins after the sale did: older orders without a row are known from elsewhere, or not.
    pub log_begins_at: Option<Millis>,
    /// Entries of the log and dead letters that this build cannot read: orders in them are not counted.
    pub unreadable: usize,
    pub books: Audit,
}

impl Rebuild {
    /// Rebuilds a sale that lost writes, or that Redis no longer knows. On return it is in the state that
    /// its row has. After an error it may be rebuilt again, and nothing is lost by it; the sale is frozen,
    /// unless only the end could not be written down.
    pub async fn run(&self, sale: &SaleId, asked: &ActRequest) -> Result<Rebuilt, RebuildError> {
        // Before the sale is frozen: what is to be read must be there.
        self.log.head().await?;
        let mut rebuilding = self.begin(sale).await?;
        let act = match self.store.begin_act(sale, "rebuild", "{}".into(), asked).await? {
            Ok(BegunAct::New(act) | BegunAct::Existing(act)) => act,
            Err(NotBegun::NoSale) => return Err(RebuildError::NotFound(sale.clone())),
            Err(other) => return Err(StoreError::Broken(format!("{other:?}")).into()),
        };
        let done = self.steps(&mut rebuilding).await;
        let (state, said, number) = match &done {
            Ok(rebuilt) => (ActState::Done, format!("at {}", rebuilt.number), Some(rebuilt.number)),
            Err(error) => (ActState::Refused, error.to_string(), None),
        };
        let _ = rebuilding.guard.release().await;
        self.store.end_act(&act, state, &said, number).await?;
        done
    }

    async fn steps(&self, rebuilding: &mut Rebuilding) -> Result<Rebuilt, RebuildError> {
        let mut gathered = self.gather(rebuilding).await?;
        // The log may know of an epoch that Redis and the database have both forgotten.
        while gathered.highest.epoch >= rebuilding.epoch {
            self.freeze_above(rebuilding, gathered.highest.epoch).await?;
            gathered = self.gather(rebuilding).await?;
        }
        let mut tries = 1;
        loop {
            let loaded = self.load(rebuilding, &gathered).await?;
            match self.finish(rebuilding, &gathered, loaded).await {
                // An order that only a message knew of may have got its row in between; or Redis was set
                // back once more.
                Err(RebuildError::OutOfBalance(_) | RebuildError::Moved) if tries < TRIES => tries += 1,
                finished => return finished,
            }
        }
    }

    /// Freezes the sale in a new epoch.
    pub async fn begin(&self, sale: &SaleId) -> Result<Rebuilding, RebuildError> {
        let row = self.row(sale).await?;
        if matches!(row.state, SaleState::Draft | SaleState::Archived) {
            return Err(RebuildError::NotLoaded(row.state));
        }
        let options = LeaseOptions::lasting(LEASE).max_hold(Duration::from_secs(3_600));
        let guard = self.leases.take(SCOPE, [sale.as_str()], options).await?.guard;
        let guard = guard.ok_or_else(|| RebuildError::UnderWay(sale.clone()))?;
        let rows = self.store.highest_number(sale).await?;
        let known = rows.max(row.number).max(row.witnessed).epoch;
        let mut rebuilding = Rebuilding { sale: sale.clone(), epoch: known, guard, before: None };
        self.freeze_above(&mut rebuilding, known).await?;
        Ok(rebuilding)
    }

    async fn freeze_above(&self, rebuilding: &mut Rebuilding, mut known: i64) -> Result<(), RebuildError> {
        let row = self.row(&rebuilding.sale).await?;
        loop {
            let epoch = known + 1;
            match self.gate.begin_rebuild(&row.sale, epoch).await? {
                RebuildStart::Frozen(before) => {
                    let row = self.row(&rebuilding.sale).await?;
                    let sells = before.filter(|state| *state != SaleState::Frozen);
                    rebuilding.before = rebuilding.before.or(sells);
                    // Whoever told the gate before of a change does not end it now: the new gate has to be
                    // told. And no later rebuild takes this epoch again.
                    let number = Number { epoch, seq: 0 };
                    let state = merged(row.state, rebuilding.before);
                    self.store.set_sale_state(&rebuilding.sale, state, number).await?;
                    tracing::info!(sale = %rebuilding.sale, epoch, "sale frozen: its gate is being rebuilt");
                    rebuilding.epoch = epoch;
                    return Ok(());
                }
                RebuildStart::Behind { epoch } => known = epoch,
            }
        }
    }

    /// Compares the books, and lets the sale go on in the state that its row has.
    pub async fn finish(
        &self,
        rebuilding: &Rebuilding,
        gathered: &Gathered,
        loaded: Loaded,
    ) -> Result<Rebuilt, RebuildError> {
        let sale = &rebuilding.sale;
        let mut books = audit(&self.gate, &self.store, sale).await?;
        if books.number != Some(loaded.number) {
            return Err(RebuildError::Moved);
        }
        if !books.balances() {
            return Err(RebuildError::OutOfBalance(Box::new(books)));
        }
        let row = self.row(sale).await?.state;
        let state = match row {
            // What somebody wrote down as frozen is for somebody to resume.
            SaleState::Frozen => SaleState::Paused,
            SaleState::Archived => SaleState::Closed,
            state => state,
        };
        let number = match self.gate.move_sale(sale, state, &[SaleState::Frozen]).await? {
            Moved::Now(number) | Moved::Already(number) => number,
            Moved::Refused(_) => return Err(RebuildError::Moved),
        };
        if row == SaleState::Archived {
            // It was archived meanwhile, and there was nothing to take out of the gate then.
            self.gate.unload(sale).await?;
        }
        self.store.set_sale_state(sale, state, number).await?;
        books.frozen = false;
        metrics::counter!("gate_rebuilt_total").increment(1);
        let Loaded { users, in_flight, .. } = loaded;
        tracing::info!(%sale, %state, %number, users, in_flight, "gate rebuilt");
        Ok(Rebuilt {
            sale_id: sale.clone(),
            state,
            number,
            users,
            in_flight,
            log_begins_at: gathered.begins_at,
            unreadable: gathered.unreadable,
            books,
        })
    }

    async fn row(&self, sale: &SaleId) -> Result<SaleRow, RebuildError> {
        self.store.sale(sale).await?.ok_or_else(|| RebuildError::NotFound(sale.clone()))
    }
}

/// What somebody has just done in the gate, and had no time to write down, counts.
fn merged(row: SaleState, gate: Option<SaleState>) -> SaleState {
    match (row, gate) {
        (SaleState::Open | SaleState::Paused, Some(SaleState::Closed)) => SaleState::Closed,
        (SaleState::Open, Some(SaleState::Paused)) => SaleState::Paused,
        (row, _) => row,
    }
}
