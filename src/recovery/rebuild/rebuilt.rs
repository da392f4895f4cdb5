//! What a rebuild did, and what its record says.

use crate::audit::Audit;
use crate::domain::{Millis, Number, SaleId, SaleState};
use crate::store::{ActState, Store, StoreError};

/// The kind of the act.
pub(super) const REBUILD: &str = "rebuild";

/// What the record of a rebuild says if its log was not whole.
const INCOMPLETE: &str = "the order log was not whole";

/// Among these the last rebuild is looked for.
const LATEST_ACTS: u64 = 100;

/// What Redis had forgotten when it came back in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Forgotten {
    /// Writes to the sale's gate: every order is one, and so is every settlement, return and act.
    pub writes: u64,
    /// Those of them that are orders with a row, or in the outbox, the log or the dead letters. All of them are loaded.
    pub orders_found: u64,
}

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
    /// For how long the sale was frozen by this rebuild.
    pub frozen_seconds: f64,
    /// Users who hold an order, live or ended.
    pub users: usize,
    /// Orders without a row.
    pub in_flight: usize,
    /// What Redis had forgotten; `None` if it had the last write, or nothing of the sale, or if it could not be counted.
    pub forgotten: Option<Forgotten>,
    /// From when on the order log was read: every order that was accepted earlier had its row.
    pub log_read_from: Millis,
    /// When the log begins, if that is later than the database's position in it: it may lack orders without a row.
    pub log_begins_at: Option<Millis>,
    /// Log entries and dead letters that this build cannot read: orders in them are not counted.
    pub unreadable: usize,
    /// The books after the rebuild; they balance.
    pub books: Audit,
}

impl Rebuilt {
    /// Whether log and dead letters could be read from the database's position on. Otherwise orders that only they have
    /// may be missing.
    pub fn is_complete(&self) -> bool {
        self.unreadable == 0 && self.log_begins_at.is_none()
    }

    /// The result of the act.
    pub(super) fn recorded(&self) -> String {
        match self.is_complete() {
            true => format!("at {}", self.number),
            false => format!("at {}; {INCOMPLETE}", self.number),
        }
    }
}

/// Whether the log was whole for the latest rebuild of the sale that was not refused, whichever process did it. `None` if
/// none is among the latest acts, or if its result is not recorded yet: that comes after the sale is open.
pub async fn was_rebuilt_completely(store: &Store, sale: &SaleId) -> Result<Option<bool>, StoreError> {
    let acts = store.acts(sale, LATEST_ACTS).await?;
    let rebuilt = acts.into_iter().find(|act| act.kind == REBUILD && act.state != ActState::Refused);
    let result = rebuilt.filter(|act| act.state == ActState::Done).and_then(|act| act.result);
    Ok(result.map(|result| !result.ends_with(INCOMPLETE)))
}
