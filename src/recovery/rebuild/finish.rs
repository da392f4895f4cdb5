//! The last step: compare the books, and put the sale back into the state of its row.

use super::error::RebuildError;
use super::freeze::{Rebuild, Rebuilding};
use super::gather::Gathered;
use super::load::Loaded;
use crate::audit::{Audit, audit};
use crate::domain::{Millis, Number, SaleId, SaleState};
use crate::gate::Moved;

/// What a rebuild did.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Rebuilt {
    /// The sale.
    pub sale_id: SaleId,
    /// Its state now.
    pub state: SaleState,
    /// The gate's number now.
    #[serde(flatten)]
    pub number: Number,
    /// Users who hold an order, live or ended.
    pub users: usize,
    /// Orders without a row.
    pub in_flight: usize,
    /// When the log begins, if that is later than the database's position in it: it may lack orders without a row.
    pub log_begins_at: Option<Millis>,
    /// Log entries and dead letters that this build cannot read: orders in them are not counted.
    pub unreadable: usize,
    /// The books after the rebuild; they balance.
    pub books: Audit,
}

impl Rebuild {
    /// Compares the books, then puts the sale into the state of its row; if the row says frozen, the sale is paused.
    /// On error the sale stays frozen, unless only the row could not be written.
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
            // If the row itself says frozen, an operator has to resume the sale.
            SaleState::Frozen => SaleState::Paused,
            SaleState::Archived => SaleState::Closed,
            state => state,
        };
        let number = match self.gate.move_sale(sale, state, &[SaleState::Frozen]).await? {
            Moved::Now(number) | Moved::Already(number) => number,
            Moved::Refused(_) => return Err(RebuildError::Moved),
        };
        if row == SaleState::Archived {
            // The sale was archived during the rebuild, when the gate had nothing to unload.
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
}
