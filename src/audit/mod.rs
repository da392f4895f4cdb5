//! Do the books balance? For every item: stock = left in the gate + in flight + live orders + units on
//! their way back to the gate.
//!
//! The gate is read first, then the outbox, then the database in one snapshot. An order that is committed
//! in between is seen twice and counted once, never missed. If the gate took no number meanwhile, the sum
//! is exact, however many orders are in flight; otherwise it may be off by the orders that moved.
//!
//! The audit compares sums. [`crate::recovery::compare`] names the orders that differ, and why.

mod books;

use std::collections::HashMap;

use crate::domain::{SaleId, SaleState, Sku, Ticket};
use crate::gate::{Gate, GateError, GateSale};
use crate::queue::QueueError;
use crate::store::{KnownTotals, SaleRow, SaleSnapshot, Store, StoreError, Totals};

pub use books::{Audit, ItemBooks};

/// Why the books could not be read. Nothing was changed; the audit may be repeated.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The database has no such sale.
    #[error("there is no sale {0}")]
    NotFound(SaleId),
    /// Redis did not answer.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The order log could not be read.
    #[error("the broker: {0}")]
    Queue(#[from] QueueError),
}

/// Where the reading of books reports its progress: called with what is read, and how many of them have been read.
pub type Progress<'a> = &'a (dyn Fn(&'static str, u64) + Sync);

/// Compares gate and database of one sale. Reads only. The rows are added up some thousand at a time, each time within
/// the time limit of one query.
pub async fn audit(gate: &Gate, store: &Store, sale: &SaleId) -> Result<Audit, AuditError> {
    Ok(audit_knowing(gate, store, sale, None, &|_, _| {}).await?.0)
}

/// The same, without adding up the rows again if the sale has not changed since the sums in `known` were found. Returns
/// the sums for the next time.
pub async fn audit_knowing(
    gate: &Gate,
    store: &Store,
    sale: &SaleId,
    known: Option<&KnownTotals>,
    progress: Progress<'_>,
) -> Result<(Audit, KnownTotals), AuditError> {
    // Read before the gate, and again with the database: units returned in between are in neither sum.
    let unreturned = store.count_returns(sale).await?;
    let held = gate.describe(sale).await?;
    let mut tickets = gate.in_flight(sale).await?;
    let ids: Vec<_> = tickets.iter().map(|ticket| ticket.order.id).collect();
    let snapshot = store.snapshot(sale, &ids, known, &|orders| progress("orders added up", orders)).await?;
    let snapshot = snapshot.ok_or_else(|| AuditError::NotFound(sale.clone()))?;
    let known = snapshot.known();
    let SaleSnapshot { recorded, row, totals, is_restocked, .. } = snapshot;
    tickets.retain(|ticket| !recorded.contains(&ticket.order.id));
    // Units returned to the gate during the reading are counted twice, or not at all.
    let number = |held: &Option<GateSale>| held.as_ref().map(|held| held.number);
    let moved = number(&gate.describe(sale).await?) != number(&held);
    // A restock reaches one store before the other.
    let half_way = |held: &GateSale| {
        let version = |sku: &Sku| held.items.iter().find(|item| item.sku == *sku).map(|item| item.version);
        row.items.iter().any(|item| version(&item.sku).is_some_and(|version| version != item.version))
    };
    let moved = moved || is_restocked || held.as_ref().is_some_and(half_way);
    let gate_lost = held.is_none() && !matches!(row.state, SaleState::Draft | SaleState::Archived);
    let items = item_books(&row, held.as_ref(), gate_lost, &tickets, &totals);
    let audit = Audit {
        sale_id: sale.clone(),
        database_behind: store.behind().is_some(),
        items,
        gate_lost,
        frozen: held.as_ref().is_some_and(|held| held.state == SaleState::Frozen),
        in_flight: tickets.len() as u64,
        unsettled: recorded.len() as u64,
        unreturned,
        moved,
        number: number(&held),
        live_orders: totals.live_orders,
        unpaid_orders: totals.unpaid_orders,
        failed_orders: totals.failed_orders,
        users_over_limit: totals.users_over_limit,
    };
    Ok((audit, known))
}

fn item_books(
    row: &SaleRow,
    held: Option<&GateSale>,
    gate_lost: bool,
    tickets: &[Ticket],
    totals: &Totals,
) -> Vec<ItemBooks> {
    let mut in_flight: HashMap<&Sku, i64> = HashMap::new();
    for ticket in tickets {
        *in_flight.entry(&ticket.order.sku).or_default() += i64::from(ticket.order.quantity);
    }
    let books = row.items.iter().map(|item| ItemBooks {
        sku: item.sku.clone(),
        stock: item.stock,
        left: match held {
            Some(held) => held.items.iter().find(|held| held.sku == item.sku).map_or(0, |held| held.left),
            None if gate_lost => 0,
            // A draft is not in the gate yet, and an archived sale no longer is.
            None => item.stock - item.sold,
        },
        in_flight: in_flight.get(&item.sku).copied().unwrap_or(0),
        returning: totals.returning_units.get(&item.sku).copied().unwrap_or(0),
        live: totals.live_units.get(&item.sku).copied().unwrap_or(0),
        sold: item.sold,
    });
    books.collect()
}
