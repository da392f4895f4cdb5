//! The last step: compare the books, and put the sale back into the state of its row.

use super::error::RebuildError;
use super::freeze::{Rebuild, Rebuilding};
use super::gather::Gathered;
use super::load::Loaded;
use super::rebuilt::{Forgotten, Rebuilt};
use crate::audit::{Progress, audit_knowing};
use crate::domain::{Number, OrderId, SaleState};
use crate::gate::Moved;
use crate::settlement::{compare_places, mark_recorded};

/// Orders that are looked up together.
const AT_ONCE: usize = 1_000;

impl Rebuild {
    /// Compares the books, then puts the sale into the state of its row; if the row says frozen, the sale is paused.
    /// On error the sale stays frozen, unless only the row could not be written.
    pub async fn finish(
        &self,
        rebuilding: &Rebuilding,
        gathered: &Gathered,
        loaded: Loaded,
        progress: Progress<'_>,
    ) -> Result<Rebuilt, RebuildError> {
        let sale = &rebuilding.sale;
        let (mut books, _) = audit_knowing(&self.gate, &self.store, sale, None, progress).await?;
        if books.number != Some(loaded.number) {
            return Err(RebuildError::Moved);
        }
        if !books.balances() {
            return Err(RebuildError::OutOfBalance(Box::new(books)));
        }
        // A worker that wrote a row before the order's entry was there again could not mark it. From here on it can, and
        // the sale does not sell yet.
        mark_recorded(&self.gate, &self.store, sale).await?;
        let row = self.row(sale).await?.state;
        let state = match row {
            // If the row itself says frozen, an operator has to resume the sale.
            SaleState::Frozen => SaleState::Paused,
            SaleState::Archived => SaleState::Closed,
            state => state,
        };
        // It may have gone back while its rows were read. Its users and units would then be those of before, and agree with it.
        compare_places(&self.gate, &self.store).await?;
        let number = match self.gate.move_rebuilt(sale, state, rebuilding.epoch).await? {
            Moved::Now(number) | Moved::Already(number) => number,
            Moved::Refused(_) => return Err(RebuildError::Moved),
        };
        if row == SaleState::Archived {
            // The sale was archived during the rebuild, when the gate had nothing to unload.
            self.gate.unload(sale).await?;
        }
        self.store.set_sale_state(sale, state, number).await?;
        books.frozen = false;
        metrics::counter!("doorbuster_gate_rebuilt_total").increment(1);
        let forgotten = self.forgotten(rebuilding, gathered).await.unwrap_or_else(|error| {
            tracing::warn!(%sale, %error, "what redis had forgotten could not be counted");
            None
        });
        let Loaded { users, in_flight, .. } = loaded;
        tracing::info!(%sale, %state, %number, users, in_flight, "gate rebuilt");
        Ok(Rebuilt {
            sale_id: sale.clone(),
            state,
            number,
            frozen_seconds: rebuilding.frozen_at.elapsed().as_secs_f64(),
            users,
            in_flight,
            forgotten,
            log_read_from: gathered.read_from(),
            log_begins_at: gathered.begins_at,
            unreadable: gathered.unreadable,
            books,
        })
    }

    /// Counts by number: the highest that anyone knows in the gate's epoch, and those that belong to an order.
    async fn forgotten(
        &self,
        rebuilding: &Rebuilding,
        gathered: &Gathered,
    ) -> Result<Option<Forgotten>, RebuildError> {
        let had = rebuilding.had;
        let known = rebuilding.known.iter().chain([&gathered.highest]);
        let known = known.filter(|number| number.epoch == had.epoch && **number > had).max();
        let Some(last) = known.filter(|_| had != Number::default()) else { return Ok(None) };
        let mut found = self.store.count_orders_between(&rebuilding.sale, had, *last).await?;
        let waiting = gathered.waiting.values().flatten();
        let forgotten = waiting.filter(|(_, held)| held.order.number > had && held.order.number <= *last);
        let ids: Vec<OrderId> = forgotten.map(|(id, _)| *id).collect();
        for ids in ids.chunks(AT_ONCE) {
            // Those that have got a row meanwhile are counted above.
            found += (ids.len() - self.store.row_versions(ids).await?.len()) as u64;
        }
        let writes = u64::try_from(last.seq - had.seq).unwrap_or(0);
        Ok(Some(Forgotten { writes, orders_found: found }))
    }
}
