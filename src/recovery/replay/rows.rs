//! The rows of the orders in a batch, read before anything is done about them.

use std::collections::BTreeMap;

use super::report::Counts;
use crate::domain::{Entry, OrderId, OrderStatus};
use crate::store::{OrderRow, Store, StoreError};

/// Orders in one query.
const AT_ONCE: usize = 500;

/// The rows of those orders that have one.
pub(super) type Rows = BTreeMap<OrderId, OrderRow>;

pub(super) async fn read(store: &Store, ids: &[OrderId]) -> Result<Rows, StoreError> {
    let mut rows = Rows::new();
    for ids in ids.chunks(AT_ONCE) {
        let found = store.orders_by_id(ids).await?;
        rows.extend(found.into_iter().map(|row| (row.order.id, row)));
    }
    Ok(rows)
}

/// Whether the row already says what the entry says, or something newer. If so, the order is counted by its row.
pub(super) fn is_settled(counts: &mut Counts, rows: &Rows, entry: &Entry) -> bool {
    let Some(order) = entry.order() else { return true };
    let Some(row) = rows.get(&order.id) else { return false };
    // The database decides about the same version with another status.
    if let Entry::Order(entry) = entry
        && (entry.version > row.version || (entry.version == row.version && entry.status != row.status))
    {
        return false;
    }
    count_row(counts, row.status);
    true
}

pub(super) fn count_row(counts: &mut Counts, status: OrderStatus) {
    match status {
        OrderStatus::Failed => counts.failed += 1,
        status if status.is_live() => counts.already += 1,
        _ => counts.ended += 1,
    }
}
