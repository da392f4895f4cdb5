//! The first step: freeze the sale in an epoch higher than any known one.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::error::RebuildError;
use crate::domain::{Number, SaleId, SaleState};
use crate::gate::{Gate, RebuildStart};
use crate::lease::{Guard, LeaseOptions, Leases};
use crate::queue::{DeadLetters, OrderLog};
use crate::store::{SaleRow, Store};

/// The scope of the leases of rebuilds. No sale can have this id, so it never collides with a buyer's lease.
const SCOPE: &str = "_rebuild";

/// If a rebuild dies, another process may rebuild the sale after this time.
const LEASE: Duration = Duration::from_secs(15);

/// A watchdog renews the lease of a running rebuild for at most this long.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Rebuilds gates. Cheap to clone.
#[derive(Clone)]
pub struct Rebuild {
    /// The gate to rebuild.
    pub gate: Gate,
    /// The database.
    pub store: Store,
    /// Keeps two rebuilds of one sale apart.
    pub leases: Leases,
    /// The dead-letter queue, which knows orders without a row.
    pub dead_letters: DeadLetters,
    /// The order log, which knows every published order.
    pub log: OrderLog,
    /// No person has asked for it. Then it fails if the sale is no longer frozen, because somebody else has just rebuilt
    /// it, and if the log may lack orders that have no row: a gate rebuilt from it would sell their units again.
    pub unattended: bool,
    /// Once it is cancelled, a rebuild under way ends and leaves its sale frozen.
    pub stop: CancellationToken,
}

/// A sale that is frozen for its rebuild. Dropping it releases the lease; the sale stays frozen.
pub struct Rebuilding {
    pub(super) sale: SaleId,
    pub(super) epoch: i64,
    pub(super) guard: Guard,
    pub(super) frozen_at: Instant,
    /// The gate's state before it was frozen, if it knew the sale.
    before: Option<SaleState>,
    /// The gate's number before it was rebuilt; zero if it did not know the sale.
    pub(super) had: Number,
    /// The highest numbers that database, fronts and this process know of.
    pub(super) known: Vec<Number>,
}

impl Rebuilding {
    /// Releases the lease: otherwise the next rebuild would have to wait until it ends.
    pub(super) async fn given_up(self, error: RebuildError) -> RebuildError {
        let _ = self.guard.release().await;
        error
    }
}

impl Rebuild {
    /// Takes the lease and freezes the sale in a new epoch. On return the gate takes no order, settles none and takes
    /// no units back, and the row has the epoch.
    pub async fn begin(&self, sale: &SaleId) -> Result<Rebuilding, RebuildError> {
        let mut rebuilding = self.prepare(sale).await?;
        match self.freeze(&mut rebuilding).await {
            Ok(()) => Ok(rebuilding),
            Err(error) => Err(rebuilding.given_up(error).await),
        }
    }

    /// Takes the lease, and changes nothing else.
    pub(super) async fn prepare(&self, sale: &SaleId) -> Result<Rebuilding, RebuildError> {
        let row = self.row(sale).await?;
        if matches!(row.state, SaleState::Draft | SaleState::Archived) {
            return Err(RebuildError::NotLoaded(row.state));
        }
        let options = LeaseOptions::lasting(LEASE).max_hold(LONGEST);
        let guard = self.leases.take(SCOPE, [sale.as_str()], options).await?.guard;
        let guard = guard.ok_or_else(|| RebuildError::UnderWay(sale.clone()))?;
        let rows = self.store.highest_number(sale).await?;
        let known = vec![rows, row.number, row.witnessed, self.gate.highest_number(sale)];
        let epoch = known.iter().map(|number| number.epoch).max().unwrap_or_default();
        let rebuilding = Rebuilding {
            sale: sale.clone(),
            epoch,
            guard,
            frozen_at: Instant::now(),
            before: None,
            had: Number::default(),
            known,
        };
        match self.is_still_needed(sale).await {
            Ok(()) => Ok(rebuilding),
            Err(error) => Err(rebuilding.given_up(error).await),
        }
    }

    /// Freezes the sale. After an error it may be frozen.
    pub(super) async fn freeze(&self, rebuilding: &mut Rebuilding) -> Result<(), RebuildError> {
        rebuilding.frozen_at = Instant::now();
        let known = rebuilding.epoch;
        self.freeze_above(rebuilding, known).await
    }

    /// Fails if nobody has asked for this rebuild and the sale sells. Only the holder of the lease can be sure of that.
    async fn is_still_needed(&self, sale: &SaleId) -> Result<(), RebuildError> {
        if !self.unattended {
            return Ok(());
        }
        match self.gate.describe(sale).await?.filter(|held| held.state != SaleState::Frozen) {
            Some(_) => Err(RebuildError::NotNeeded(sale.clone())),
            None => Ok(()),
        }
    }

    /// Freezes the sale in an epoch above `known`, and above the one that the gate has.
    pub(super) async fn freeze_above(
        &self,
        rebuilding: &mut Rebuilding,
        mut known: i64,
    ) -> Result<(), RebuildError> {
        let row = self.row(&rebuilding.sale).await?;
        loop {
            let epoch = known + 1;
            match self.gate.begin_rebuild(&row.sale, epoch).await? {
                RebuildStart::Frozen { state, before, known } => {
                    rebuilding.had = before;
                    rebuilding.known.push(known);
                    let row = self.row(&rebuilding.sale).await?;
                    let selling = state.filter(|state| *state != SaleState::Frozen);
                    rebuilding.before = rebuilding.before.or(selling);
                    // With this number in the row, an act that changed the old gate does not count as done until it
                    // has changed the new one, and no later rebuild takes this epoch again.
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

    pub(super) async fn row(&self, sale: &SaleId) -> Result<SaleRow, RebuildError> {
        self.store.sale(sale).await?.ok_or_else(|| RebuildError::NotFound(sale.clone()))
    }
}

/// A pause or close that reached the gate counts, even if its row was not written in time.
fn merged(row: SaleState, gate: Option<SaleState>) -> SaleState {
    match (row, gate) {
        (SaleState::Open | SaleState::Paused, Some(SaleState::Closed)) => SaleState::Closed,
        (SaleState::Open, Some(SaleState::Paused)) => SaleState::Paused,
        (row, _) => row,
    }
}
