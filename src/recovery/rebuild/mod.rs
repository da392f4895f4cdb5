//! Rebuilds a gate that lost writes, or everything. The sale is frozen from the first step to the last.
//!
//! The order of the steps makes it correct, and each step may be repeated:
//!
//! 1. Freeze the sale in an epoch higher than any known one, so that a rebuild with an older view fails when
//!    it loads. A frozen gate takes no order, settles none and takes no units back.
//! 2. Read the outbox, the order log and the dead-letter queue, and only **then** the database. In the
//!    opposite order, an order that is committed in between would be in neither.
//! 3. Give users their live rows and their orders without a row; the units left are the stock minus those. The users
//!    are staged in the gate page by page, and loaded in one step, which acts only if the epoch is still the same.
//! 4. Compare the books, and put the sale back into the state of its row.
//!
//! A rebuild does not wait for queues to drain: an order that is being retried or is parked never leaves its queue.
//! An order that is known only from a message in a queue is adopted when it gets its row.

mod error;
mod finish;
mod freeze;
mod gather;
mod load;
mod rebuilt;

use crate::audit::Progress;
use crate::domain::{ActRequest, Number, SaleId};
use crate::store::{ActState, BegunAct, NotBegun, SaleAct, StoreError};

use rebuilt::REBUILD;

pub use error::RebuildError;
pub use freeze::{Rebuild, Rebuilding};
pub use gather::Gathered;
pub use load::Loaded;
pub use rebuilt::{Forgotten, Rebuilt, was_rebuilt_completely};

/// How often the database is read, because orders known only from a message get their rows meanwhile.
const ATTEMPTS: u32 = 3;

impl Rebuild {
    /// Rebuilds a sale that lost writes, or that Redis no longer has. On return it is in the state of its row, and
    /// its books balance. After an error nothing is lost and it may be run again; the sale is frozen, unless only the
    /// last write to its row failed.
    pub async fn run(
        &self,
        sale: &SaleId,
        request: &ActRequest,
        progress: Progress<'_>,
    ) -> Result<Rebuilt, RebuildError> {
        // Before the sale is frozen: neither an unreadable log nor a database that is behind must stop it.
        let compared = self.stop.run_until_cancelled(self.compare_with_log(sale)).await;
        compared.unwrap_or_else(|| Err(RebuildError::Stopped(sale.clone())))?;
        let mut rebuilding = self.prepare(sale).await?;
        // Before the sale is frozen as well: a database that takes no write must not stop it.
        let act = match self.begin_act(sale, request).await {
            Ok(act) => act,
            Err(error) => return Err(rebuilding.given_up(error).await),
        };
        let done = match self.freeze(&mut rebuilding).await {
            // As harmless as a crash at the same place, but the next rebuild need not wait for the lease.
            Ok(()) => {
                let steps = self.stop.run_until_cancelled(self.steps(&mut rebuilding, progress)).await;
                steps.unwrap_or_else(|| Err(RebuildError::Stopped(sale.clone())))
            }
            Err(error) => Err(error),
        };
        if done.is_err() {
            // If this fails, the next rebuild of the sale does it.
            let _ = self.gate.clear_staged(sale, rebuilding.epoch).await;
        }
        let (state, result, number) = match &done {
            Ok(rebuilt) => (ActState::Done, rebuilt.recorded(), Some(rebuilt.number)),
            Err(error) => (ActState::Refused, error.to_string(), None),
        };
        let _ = rebuilding.guard.release().await;
        self.store.end_act(&act, state, &result, number).await?;
        done
    }

    async fn begin_act(&self, sale: &SaleId, request: &ActRequest) -> Result<SaleAct, RebuildError> {
        match self.store.begin_act(sale, REBUILD, "{}".into(), request).await? {
            Ok(BegunAct::New(act) | BegunAct::Existing(act)) => Ok(act),
            Err(NotBegun::NoSale) => Err(RebuildError::NotFound(sale.clone())),
            Err(other) => Err(StoreError::Broken(format!("{other:?}")).into()),
        }
    }

    async fn steps(
        &self,
        rebuilding: &mut Rebuilding,
        progress: Progress<'_>,
    ) -> Result<Rebuilt, RebuildError> {
        let mut gathered = self.gather(rebuilding).await?;
        // The log may have an epoch that Redis and the database have both lost. Its own epoch, of which no order has a
        // number yet, is there as soon as the frozen row has been logged.
        while gathered.highest > (Number { epoch: rebuilding.epoch, seq: 0 }) {
            self.freeze_above(rebuilding, gathered.highest.epoch).await?;
            gathered = self.gather(rebuilding).await?;
        }
        let is_whole = gathered.begins_at.is_none() && gathered.unreadable == 0;
        if self.unattended && !is_whole {
            return Err(RebuildError::LogIncomplete(rebuilding.sale.clone()));
        }
        let mut attempts = 1;
        loop {
            let loaded = self.load(rebuilding, &gathered, progress).await?;
            match self.finish(rebuilding, &gathered, loaded, progress).await {
                // An order known only from a message may have got its row in between, or Redis lost writes again.
                Err(RebuildError::OutOfBalance(_) | RebuildError::Moved) if attempts < ATTEMPTS => {
                    attempts += 1
                }
                finished => return finished,
            }
        }
    }
}
