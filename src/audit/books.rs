//! The books of one sale side by side, and the verdict on their sums.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::{Number, SaleId, Sku, UserId};

/// The books of one sale, from one reading of gate, outbox and database.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Audit {
    /// The sale.
    pub sale_id: SaleId,
    /// One line per item.
    pub items: Vec<ItemBooks>,
    /// The sale was opened, but the gate does not know it. Orders in flight are unknown.
    pub gate_lost: bool,
    /// The gate lost writes and must not be trusted before it is rebuilt.
    #[serde(default)]
    pub frozen: bool,
    /// Accepted orders for which no committed row was seen.
    pub in_flight: u64,
    /// Orders with a committed row whose outbox entry is still there.
    pub unsettled: u64,
    /// Ended orders whose units were on their way back to the gate before it was read.
    #[serde(default)]
    pub unreturned: u64,
    /// The database has lost commits: until it has been brought up to date, its side of the books is out of date.
    #[serde(default)]
    pub database_behind: bool,
    /// The gate's number rose during the reading, or a restock had reached only one store: the sums may be off by
    /// that.
    #[serde(default)]
    pub moved: bool,
    /// The gate's number when it was read; `None` if it does not know the sale.
    #[serde(default)]
    pub number: Option<Number>,
    /// Live rows.
    pub live_orders: u64,
    /// Live rows that wait for payment.
    #[serde(default)]
    pub unpaid_orders: u64,
    /// Failed rows.
    pub failed_orders: u64,
    /// Users whose live units exceed the limit that applied to them.
    pub users_over_limit: Vec<UserId>,
}

/// The books of one item, in units.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ItemBooks {
    /// The item.
    pub sku: Sku,
    /// Units in the sale, according to the database.
    pub stock: i64,
    /// Units that the gate can still sell.
    pub left: i64,
    /// Units of orders in flight.
    pub in_flight: i64,
    /// Units of ended orders that the gate does not have back yet.
    #[serde(default)]
    pub returning: i64,
    /// Units of live orders, counted from their rows.
    pub live: i64,
    /// The database's own counter; must equal `live`.
    pub sold: i64,
}

impl ItemBooks {
    /// Live units beyond the stock; 0 unless the item is oversold.
    pub fn oversold(&self) -> i64 {
        (self.live - self.stock).max(0)
    }

    /// Units missing from the books: positive if they leaked, negative if they are promised twice.
    pub fn missing(&self) -> i64 {
        self.stock - self.left - self.in_flight - self.returning - self.live
    }
}

impl Audit {
    /// Whether the sums agree. If `moved` is set, `false` may be an artefact of the reading.
    pub fn balances(&self) -> bool {
        !self.gate_lost
            && !self.database_behind
            && !self.rows_are_wrong()
            && self.items.iter().all(|item| item.missing() == 0)
    }

    /// Whether the rows alone break a promise: an item is oversold, a user is over the limit, or a counter differs from
    /// its rows. They are read at one moment, so this is exact even if `moved` is set.
    pub fn rows_are_wrong(&self) -> bool {
        let wrong = |item: &ItemBooks| item.oversold() > 0 || item.sold != item.live;
        !self.users_over_limit.is_empty() || self.items.iter().any(wrong)
    }

    /// Whether the gate has to be rebuilt before anything else is repaired.
    pub fn needs_rebuild(&self) -> bool {
        self.gate_lost || self.frozen
    }

    /// Whether nothing was in progress: no order in flight, no units on their way back, no write to the gate.
    pub fn is_at_rest(&self) -> bool {
        !self.moved
            && self.in_flight + self.unsettled + self.unreturned == 0
            && self.items.iter().all(|item| item.returning == 0)
    }
}
