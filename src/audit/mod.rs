//! Do the books balance? For every item: stock = left in the gate + in flight + live orders, and what
//! is on its way back to the gate.
//!
//! The gate is read first, then the outbox, then the database, as it is at one moment: an order that is
//! committed in between is seen twice and counted once, never missed. Where the gate took no number
//! meanwhile the sum is exact, however many orders are in flight; else it may be off by those in a hurry.
//!
//! This is the sum; which order differs, and why, is told by [`crate::recovery::compare`].

use serde::{Deserialize, Serialize};

use crate::domain::{Number, SaleId, SaleState, Sku, UserId};
use crate::gate::{Gate, GateError};
use crate::queue::QueueError;
use crate::store::{Store, StoreError};

#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("there is no sale {0}")]
    NotFound(SaleId),
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the broker: {0}")]
    Queue(#[from] QueueError),
}

/// The books of one sale, compared.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Audit {
    pub sale_id: SaleId,
    pub items: Vec<ItemBooks>,
    /// The sale was opened, and the gate does not know it: what was in flight is not known.
    pub gate_lost: bool,
    /// The gate lost writes: what it has is not to be believed before it is rebuilt.
    #[serde(default)]
    pub frozen: bool,
    /// Orders in flight: accepted, no committed row seen.
    pub in_flight: u64,
    /// Orders with a committed row that the gate has not been told of yet.
    pub unsettled: u64,
    /// Ended orders whose units were on their way to the gate before it was read.
    #[serde(default)]
    pub unreturned: u64,
    /// The gate took a number while the books were read, or a change of stock is half way: the sums may be
    /// off by it.
    #[serde(default)]
    pub moved: bool,
    /// The gate's number when it was read.
    #[serde(default)]
    pub number: Option<Number>,
    pub live_orders: u64,
    /// Those of them that wait for their payment.
    #[serde(default)]
    pub unpaid_orders: u64,
    pub failed_orders: u64,
    /// Users whose live units exceed what they were allowed.
    pub users_over_limit: Vec<UserId>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ItemBooks {
    pub sku: Sku,
    pub stock: i64,
    /// What the gate would still sell.
    pub left: i64,
    /// Units of orders in flight.
    pub in_flight: i64,
    /// Units of ended orders that the gate has not been told of yet.
    #[serde(default)]
    pub returning: i64,
    /// Units of live orders, counted from their rows.
    pub live: i64,
    /// The database's own counter; must equal `live`.
    pub sold: i64,
}

impl ItemBooks {
    pub fn oversold(&self) -> i64 {
        (self.live - self.stock).max(0)
    }

    /// Units that are nowhere: above 0 they leaked, below 0 they are promised twice.
    pub fn missing(&self) -> i64 {
        self.stock - self.left - self.in_flight - self.returning - self.live
    }
}

impl Audit {
    pub fn balances(&self) -> bool {
        !self.gate_lost
            && self.users_over_limit.is_empty()
            && self
                .items
                .iter()
                .all(|item| item.oversold() == 0 && item.missing() == 0 && item.sold == item.live)
    }

    /// The gate has to be rebuilt.
    pub fn needs_rebuild(&self) -> bool {
        self.gate_lost || self.frozen
    }

    pub fn is_at_rest(&self) -> bool {
        !self.moved
            && self.in_flight + self.unsettled + self.unreturned == 0
            && self.items.iter().all(|item| item.returning == 0)
    }
}

/// Compares gate and database of one sale. Reads only.
pub async fn audit(gate: &Gate, store: &Store, sale: &SaleId) -> Result<Audit, AuditError> {
    // Before the gate, and once more after it: what comes there in between is in neither sum.
    let unreturned = store.count_returns(sale).await?;
    let held = gate.describe(sale).await?;
    let mut tickets = gate.in_flight(sale).await?;
    let ids: Vec<_> = tickets.iter().map(|ticket| ticket.order.id).collect();
    let books = store.snapshot(sale, &ids).await?.ok_or_else(|| AuditError::NotFound(sale.clone()))?;
    let crate::store::SaleSnapshot { recorded, row, totals, is_restocked } = books;
    tickets.retain(|ticket| !recorded.contains(&ticket.order.id));
    // What came back to the gate while the rest was read is in two books, or in none.
    let number = |held: &Option<crate::gate::GateSale>| held.as_ref().map(|held| held.number);
    let moved = number(&gate.describe(sale).await?) != number(&held);
    // Between the two stores of a change of stock, one has it and the other has not.
    let half_way = |held: &crate::gate::GateSale| {
        let version = |sku: &Sku| held.items.iter().find(|item| item.sku == *sku).map(|item| item.version);
        row.items.iter().any(|item| version(&item.sku).is_some_and(|version| version != item.version))
    };
    let moved = moved || is_restocked || held.as_ref().is_some_and(half_way);
    let gate_lost = held.is_none() && !matches!(row.state, SaleState::Draft | SaleState::Archived);
    let items = row
        .items
        .iter()
        .map(|item| ItemBooks {
            sku: item.sku.clone(),
            stock: item.stock,
            left: match &held {
                Some(held) => held.items.iter().find(|held| held.sku == item.sku).map_or(0, |held| held.left),
                None if gate_lost => 0,
                // A draft is not in the gate yet, and an archived sale no longer.
                None => item.stock - item.sold,
            },
            in_flight: tickets
                .iter()
                .filter(|ticket| ticket.order.sku == item.sku)
                .map(|ticket| i64::from(ticket.order.quantity))
                .sum(),
            returning: totals.returning_units.get(&item.sku).copied().unwrap_or(0),
            live: totals.live_units.get(&item.sku).copied().unwrap_or(0),
            sold: item.sold,
        })
        .collect();
    Ok(Audit {
        sale_id: sale.clone(),
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
    })
}
