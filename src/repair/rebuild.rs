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

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::audit::{Audit, AuditError, audit};
use crate::domain::{Asked, Entry, Millis, Number, Order, OrderId, SaleId, SaleState, Sku, UserId};
use crate::fault::fault;
use crate::gate::{Begun, Gate, GateError, Held, Moved, RebuiltItem};
use crate::lease::{Guard, LeaseError, Leases, Terms};
use crate::queue::{Letters, LogFrom, OrderLog, QueueError};
use crate::store::{ActState, Begun as BegunAct, NotBegun, SaleRow, Store, StoreError};

/// No sale can have this id, so no buyer's lease is a rebuild's.
const SCOPE: &str = "_rebuild";
const LEASE: Duration = Duration::from_secs(15);

/// What the clocks of fronts, Redis and broker may differ by.
const CLOCKS_MS: i64 = 60_000;

/// Rows in one query.
const PAGE: u64 = 1_000;

/// Dead letters that are looked at.
const LETTERS: usize = 10_000;

/// Ended orders that are remembered of a user, as `settle.lua` does it.
const REMEMBERED: usize = 8;

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
    pub letters: Letters,
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

/// What outbox, log and dead-letter queue know of a sale.
#[derive(Default)]
pub struct Gathered {
    /// Orders that were accepted. `true`: it lies on the dead-letter queue.
    accepted: HashMap<OrderId, (Order, bool)>,
    /// Versions of rows that the log has seen.
    versions: HashMap<OrderId, i32>,
    /// The highest number that was given.
    highest: Number,
    /// The log remembers nothing older.
    pub begins_at: Option<Millis>,
    /// Entries and letters that this build cannot read.
    unreadable: usize,
}

/// What was loaded.
#[derive(Debug, Clone, Copy)]
pub struct Loaded {
    /// Who hold something.
    pub users: usize,
    /// Orders without a row.
    pub in_flight: usize,
    number: Number,
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
    pub async fn run(&self, sale: &SaleId, asked: &Asked) -> Result<Rebuilt, RebuildError> {
        // Before the sale is frozen: what is to be read must be there.
        self.log.head().await?;
        let mut rebuilding = self.begin(sale).await?;
        let act = match self.store.begin_act(sale, "rebuild", "{}".into(), asked).await? {
            Ok(BegunAct::New(act) | BegunAct::Before(act)) => act,
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
        let terms = Terms::lasting(LEASE).at_most(Duration::from_secs(3_600));
        let guard = self.leases.take(SCOPE, [sale.as_str()], terms).await?.guard;
        let guard = guard.ok_or_else(|| RebuildError::UnderWay(sale.clone()))?;
        let rows = self.store.highest_number(sale).await?;
        let known = rows.max(row.number).max(row.told).epoch;
        let mut rebuilding = Rebuilding { sale: sale.clone(), epoch: known, guard, before: None };
        self.freeze_above(&mut rebuilding, known).await?;
        Ok(rebuilding)
    }

    async fn freeze_above(&self, rebuilding: &mut Rebuilding, mut known: i64) -> Result<(), RebuildError> {
        let row = self.row(&rebuilding.sale).await?;
        loop {
            let epoch = known + 1;
            match self.gate.begin_rebuild(&row.sale, epoch).await? {
                Begun::Now(before) => {
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
                Begun::Behind { epoch } => known = epoch,
            }
        }
    }

    /// Reads what knows of orders without a row. Everything that was accepted before the sale was frozen
    /// is in one of them, or has a row when the database is read afterwards.
    pub async fn gather(&self, rebuilding: &Rebuilding) -> Result<Gathered, RebuildError> {
        let sale = &rebuilding.sale;
        let mut gathered = Gathered::default();
        for ticket in self.gate.in_flight(sale).await? {
            gathered.highest = gathered.highest.max(ticket.order.number);
            gathered.accepted.insert(ticket.order.id, (ticket.order, ticket.parked));
        }
        let created = self.row(sale).await?.created_at;
        let mut reader = self.log.read(LogFrom::Time(Millis(created.0 - CLOCKS_MS))).await?;
        while let Some(message) = reader.next().await? {
            for entry in message.entries {
                let Ok(entry) = entry else {
                    gathered.unreadable += 1;
                    continue;
                };
                match entry {
                    entry if entry.sale() != sale => {}
                    Entry::Accepted(order) => {
                        gathered.highest = gathered.highest.max(order.number);
                        gathered.accepted.entry(order.id).or_insert((order, false));
                    }
                    Entry::Order(entry) => {
                        gathered.highest = gathered.highest.max(entry.order.number);
                        let version = gathered.versions.entry(entry.order.id).or_insert(0);
                        *version = entry.version.max(*version);
                    }
                    Entry::Sale(entry) => gathered.highest = gathered.highest.max(entry.number),
                    Entry::Act(_) | Entry::Payment(_) => {}
                }
            }
        }
        // That the sale was created stands in the log, unless that was forgotten, or the log wiped.
        let first = reader.first().and_then(|first| first.at);
        gathered.begins_at = first.filter(|at| at.0 > created.0 + CLOCKS_MS);
        reader.close().await;
        for letter in self.letters.list(LETTERS).await? {
            gathered.unreadable += usize::from(letter.orders.is_err());
            for order in letter.orders.into_iter().flatten().filter(|order| order.sale == *sale) {
                gathered.highest = gathered.highest.max(order.number);
                gathered.accepted.insert(order.id, (order, true));
            }
        }
        fault!("rebuild.gathered", return Err(GateError::Unavailable("injected".into()).into()));
        Ok(gathered)
    }

    /// Reads the database, and loads.
    pub async fn load(&self, rebuilding: &Rebuilding, gathered: &Gathered) -> Result<Loaded, RebuildError> {
        let sale = &rebuilding.sale;
        // Before the rows: what is owed by then has ended in them, and is taken back by the load.
        let owed = self.store.returns_for(sale).await?;
        let mut waiting: HashMap<OrderId, &(Order, bool)> =
            gathered.accepted.iter().map(|(id, held)| (*id, held)).collect();
        let mut versions = gathered.versions.clone();
        let mut users: BTreeMap<UserId, Vec<Held>> = BTreeMap::new();
        let mut taken: BTreeMap<Sku, i64> = BTreeMap::new();
        let mut ended = std::collections::HashSet::new();
        let mut after = None;
        loop {
            let page = self.store.orders_after(sale, after, PAGE).await?;
            after = page.last().map(|row| row.order.id).or(after);
            let last = (page.len() as u64) < PAGE;
            for row in page {
                waiting.remove(&row.order.id);
                if versions.remove(&row.order.id).is_some_and(|version| version > row.version) {
                    return Err(RebuildError::DatabaseBehind(row.order.id));
                }
                let live = row.status.is_live();
                if live {
                    *taken.entry(row.order.sku.clone()).or_default() += i64::from(row.order.quantity);
                } else if row.failure.is_some() {
                    // Its user is free, and its unit may never have existed.
                    continue;
                } else {
                    ended.insert(row.order.id);
                }
                let held = Held { ended: !live, order: row.order };
                users.entry(held.order.user.clone()).or_default().push(held);
            }
            if last {
                break;
            }
        }
        if let Some((id, _)) = versions.into_iter().next() {
            return Err(RebuildError::DatabaseBehind(id));
        }
        for (order, _) in waiting.values() {
            *taken.entry(order.sku.clone()).or_default() += i64::from(order.quantity);
            let held = Held { ended: false, order: order.clone() };
            users.entry(order.user.clone()).or_default().push(held);
        }
        let row = self.row(sale).await?;
        for held in users.values_mut() {
            held.sort_by_key(|held| held.order.number);
            if row.sale.rules.rebuy {
                forget(held);
            }
        }
        let pending = self.store.pending_restocks(sale).await?;
        let items: Vec<RebuiltItem> = row
            .items
            .iter()
            .map(|item| {
                // Units that are to be taken away are not yet: that change is still to come.
                let lowers = |restock: &&crate::store::Restock| {
                    restock.sku == item.sku && restock.units < 0 && restock.version == item.version
                };
                let version = item.version - i64::from(pending.iter().any(|restock| lowers(&restock)));
                let left = item.stock - taken.get(&item.sku).copied().unwrap_or(0);
                RebuiltItem { sku: item.sku.clone(), left, stock: item.stock, version }
            })
            .collect();
        let flight: Vec<(&Order, bool)> = waiting.values().map(|held| (&held.0, held.1)).collect();
        if !rebuilding.guard.is_valid_for(Duration::ZERO) {
            return Err(RebuildError::UnderWay(sale.clone()));
        }
        fault!("rebuild.read", return Err(GateError::Unavailable("injected".into()).into()));
        self.gate.refill_outbox(sale, rebuilding.epoch, &flight).await?;
        let number =
            self.gate.load_rebuilt(&row.sale, row.rules_version, rebuilding.epoch, &users, &items).await?;
        fault!("rebuild.loaded", return Err(GateError::Unavailable("injected".into()).into()));
        let returned: Vec<OrderId> = owed.into_iter().filter(|id| ended.contains(id)).collect();
        for ids in returned.chunks(500) {
            self.store.returned(sale, number, ids).await?;
        }
        Ok(Loaded { users: users.len(), in_flight: flight.len(), number })
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
        let number = match self.gate.move_to(sale, state, &[SaleState::Frozen]).await? {
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

/// Of those that ended the last few are remembered.
fn forget(held: &mut Vec<Held>) {
    let ended = held.iter().filter(|held| held.ended).count();
    let mut too_many = ended.saturating_sub(REMEMBERED);
    held.retain(|held| {
        let forgotten = held.ended && too_many > 0;
        too_many -= usize::from(forgotten);
        !forgotten
    });
}
