//! After a restart Redis may lack its last writes and would sell their units again. So it sells nothing until no sale
//! in it is behind the database, or behind the entries of the order log that have no row yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::MaintenanceError;
use crate::domain::{CLOCK_SKEW, Entry, Millis, Number, SaleId, SaleState};
use crate::gate::{Gate, GateError};
use crate::lease::{Guard, LeaseOptions, Leases};
use crate::queue::{LogFrom, OrderLog, QueueSettings};
use crate::recovery::log_needed_from;
use crate::settlement::{SettlementError, compare_places, mark_recorded};
use crate::store::{SaleNumber, Store, StoreError};

const EVERY: Duration = Duration::from_secs(1);

/// Why this process sells nothing for now. The check is repeated every second.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotCompared {
    /// The first comparison is under way.
    #[error("its books are being compared")]
    UnderWay,
    /// The books could not be compared.
    #[error("{0}")]
    Failed(String),
}

/// Has the gate check a restarted Redis before the first buyer comes, and publishes the result.
pub struct RestartCheck {
    gate: Gate,
    report: watch::Sender<Result<(), NotCompared>>,
}

impl RestartCheck {
    /// `gate` compares with [`Comparison::run`], once per restart. The receiver has the result of the latest look; until
    /// the first it is [`NotCompared::UnderWay`].
    pub fn new(gate: Gate) -> (Self, watch::Receiver<Result<(), NotCompared>>) {
        let (report, compared) = watch::channel(Err(NotCompared::UnderWay));
        (Self { gate, report }, compared)
    }

    /// Looks once a second until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let Some(compared) = stop.run_until_cancelled(self.gate.ensure_compared()).await else { return };
            let compared = compared.map_err(|error| NotCompared::Failed(error.to_string()));
            if let Err(why) = &compared
                && *self.report.borrow() != compared
            {
                tracing::warn!(%why, "nothing is sold");
            }
            let _before = self.report.send_replace(compared);
            if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
                return;
            }
        }
    }
}

/// The scope and the names of the leases under which one process compares for all. A process that has waited this long
/// takes the next name: the one before may be slow, cut off from a server, or dead, and nothing is sold meanwhile.
const SCOPE: &str = "_compare";
const NAMES: [&str; 3] = ["redis", "redis-2", "redis-3"];
const NEXT_AFTER: Duration = Duration::from_secs(3);

/// If the process that compares dies, another one may begin after this time.
const LEASE: Duration = Duration::from_secs(15);

/// A comparison is given up after this time.
const LONGEST: Duration = Duration::from_secs(600);

/// How long to wait for another process's comparison: longer than the lease of one that has died.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Between two looks at another process's comparison.
const LOOK: Duration = Duration::from_millis(100);

/// What a comparison needs. Cheap to clone.
#[derive(Clone)]
pub struct Comparison {
    /// The Redis that has restarted.
    pub gate: Gate,
    /// The database.
    pub store: Store,
    /// Lets one process compare for all.
    pub leases: Leases,
    /// The broker with the order log.
    pub queue: QueueSettings,
}

impl Comparison {
    /// Freezes every sale whose gate is behind its rows or behind the order log, and has readers go to the row of every
    /// order that has one. On `Ok` every other gate is known to be up to date, by this comparison or by that of another
    /// process. On an error that is not known, and nothing may be sold yet. Idempotent; may run in several processes.
    ///
    /// Returns the lease if this process has compared: hold it until the others can see so.
    pub async fn run(self) -> Result<Option<Guard>, MaintenanceError> {
        let began = Instant::now();
        let mut waited = false;
        let guard = loop {
            if let Some(guard) = self.take_any(began.elapsed()).await? {
                break guard;
            }
            if self.gate.is_compared().await? {
                return Ok(None);
            }
            if began.elapsed() > TIMEOUT {
                return Err(MaintenanceError::ComparedElsewhere);
            }
            waited = true;
            tokio::time::sleep(LOOK).await;
        };
        // The lease may be free now because another process has compared.
        if waited && self.gate.is_compared().await? {
            return Ok(None);
        }
        verify(&self.gate, &self.store, &self.queue).await?;
        Ok(Some(guard))
    }

    /// Takes a lease that is free, of those that a process may take after waiting this long.
    async fn take_any(&self, waited: Duration) -> Result<Option<Guard>, MaintenanceError> {
        let mut free_from = Duration::ZERO;
        for name in NAMES {
            if waited < free_from {
                break;
            }
            let options = LeaseOptions::lasting(LEASE).max_hold(LONGEST);
            if let Some(guard) = self.leases.take(SCOPE, [name], options).await?.guard {
                if !free_from.is_zero() {
                    tracing::warn!(?waited, "compares redis too: another process has not finished");
                }
                return Ok(Some(guard));
            }
            free_from += NEXT_AFTER;
        }
        Ok(None)
    }
}

async fn verify(gate: &Gate, store: &Store, queue: &QueueSettings) -> Result<(), MaintenanceError> {
    let (mut known, since) = highest_recorded(gate, store).await?;
    if let Some(since) = since {
        let log = OrderLog::open(queue.clone());
        // A sale without an entry in the log is neither ahead nor behind by it.
        let from = since.minus(CLOCK_SKEW);
        let logged = highest_logged(&log, store, LogFrom::Time(from)).await?;
        tracing::info!(sales = known.len(), log_from = %from, "compares redis with the database and the order log");
        for (sale, number) in logged {
            if let Some(known) = known.get_mut(&sale) {
                *known = number.max(*known);
            }
        }
    }
    for (sale, known) in known {
        match mark_recorded(gate, store, &sale).await {
            Ok(()) | Err(SettlementError::Gate(GateError::Broken(_))) => {}
            Err(error) => return Err(error.into()),
        }
        gate.observe_number(&sale, known);
        let frozen = match gate.freeze_if_behind(&sale, known).await {
            Ok(frozen) => frozen,
            // A sale that cannot be read sells nothing, and must not keep the others closed.
            Err(error @ GateError::Broken(_)) => {
                tracing::error!(%sale, %error, "a sale in redis cannot be read");
                false
            }
            Err(error) => return Err(error.into()),
        };
        if frozen {
            metrics::counter!("doorbuster_gate_frozen_total").increment(1);
            tracing::error!(%sale, %known, "sale frozen: redis came back without writes that the database or the order log has");
        }
    }
    match compare_places(gate, store).await {
        // Fronts sell all the same: the gate is right, and the broker carries.
        Ok(()) | Err(SettlementError::Store(StoreError::Behind(_))) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The highest number of each sale in the database, and from when on the log may have higher ones: an order with a
/// higher number than every row was accepted after the last of them, and after the database's own position in the log.
/// Where nothing is sold, from its position: the database may have lost the sale, or its opening. `None` if it is new.
async fn highest_recorded(
    gate: &Gate,
    store: &Store,
) -> Result<(BTreeMap<SaleId, Number>, Option<Millis>), MaintenanceError> {
    let mut known: BTreeMap<SaleId, Number> = BTreeMap::new();
    let mut since: Option<Millis> = None;
    // A sale that Redis has lost is not compared, but only the log may know that the database has lost commits of it.
    let rows: BTreeMap<SaleId, SaleNumber> =
        store.sale_numbers().await?.into_iter().map(|row| (row.id.clone(), row)).collect();
    // One in a state of a later build may sell.
    let sells =
        |row: &&SaleNumber| row.state.is_none_or(|state| state != SaleState::Draft && !state.has_ended());
    let mut sales: BTreeSet<SaleId> = gate.sales().await?.into_iter().collect();
    sales.extend(rows.values().filter(sells).map(|row| row.id.clone()));
    for sale in sales {
        let last = store.last_order(&sale).await?;
        let row = rows.get(&sale);
        let (orders, at) = last.map_or((Number::default(), None), |(number, at)| (number, Some(at)));
        if let Some(row) = row.filter(sells) {
            let from = at.unwrap_or(row.created_at);
            since = Some(since.map_or(from, |since| since.min(from)));
        }
        // An operator's act takes a number too, or a sale whose pause was lost would sell. So does a return of units.
        let acts = row.map(|row| row.number).unwrap_or_default();
        known.insert(sale, orders.max(acts));
    }
    let needed = log_needed_from(store).await?;
    Ok((known, needed.max(since)))
}

/// The highest number of each sale in the log, from a time on. The log's places of the database are recorded as well: a
/// Redis that lost its data no longer witnesses them.
async fn highest_logged(
    log: &OrderLog,
    store: &Store,
    from: LogFrom,
) -> Result<BTreeMap<SaleId, Number>, MaintenanceError> {
    let mut highest: BTreeMap<SaleId, Number> = BTreeMap::new();
    let mut reader = log.read(from).await?;
    while let Some(message) = reader.next().await? {
        for (sale, place) in &message.places {
            store.observe_place(sale, *place);
        }
        for entry in message.entries.iter().flatten() {
            let number = match entry {
                Entry::Sale(sale) => sale.number,
                other => other.order().map(|order| order.number).unwrap_or_default(),
            };
            match highest.get_mut(entry.sale()) {
                Some(known) => *known = number.max(*known),
                None => {
                    highest.insert(entry.sale().clone(), number);
                }
            }
        }
    }
    reader.close().await;
    Ok(highest)
}
