//! What the gate is loaded with: the rows, and the gathered orders without a row.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::error::RebuildError;
use super::freeze::{Rebuild, Rebuilding};
use super::gather::Gathered;
use crate::domain::{Number, Order, OrderId, Sku, UserId};
use crate::fault::fault;
use crate::gate::{RebuiltHolding, RebuiltItem, RebuiltSale};
use crate::store::{OrderRow, Restock, SaleRow};

/// Rows in one query.
const PAGE: u64 = 1_000;

/// Ended orders kept per user in a sale with rebuy; the same number as in `settle.lua`.
const ENDED_KEPT: usize = 8;

/// Orders whose return is recorded in one transaction.
const RETURNS_AT_ONCE: usize = 500;

/// What was loaded.
#[derive(Debug, Clone, Copy)]
pub struct Loaded {
    /// Users who hold an order, live or ended.
    pub users: usize,
    /// Orders without a row.
    pub in_flight: usize,
    /// The gate's number after the load.
    pub(super) number: Number,
}

/// Who holds what, from rows and gathered orders together.
struct Holders<'a> {
    users: BTreeMap<UserId, Vec<RebuiltHolding>>,
    taken: BTreeMap<Sku, i64>,
    /// Orders that ended in their rows without having failed.
    ended: HashSet<OrderId>,
    /// Gathered orders; reading the rows removes those that have one. `true`: on the dead-letter queue.
    waiting: HashMap<OrderId, &'a (Order, bool)>,
    /// Versions in the log; removed in the same way.
    versions: HashMap<OrderId, i32>,
}

impl<'a> Holders<'a> {
    fn new(gathered: &'a Gathered) -> Self {
        Self {
            users: BTreeMap::new(),
            taken: BTreeMap::new(),
            ended: HashSet::new(),
            waiting: gathered.accepted.iter().map(|(id, held)| (*id, held)).collect(),
            versions: gathered.versions.clone(),
        }
    }

    fn add_row(&mut self, row: OrderRow) -> Result<(), RebuildError> {
        let (id, live) = (row.order.id, row.status.is_live());
        self.waiting.remove(&id);
        if self.versions.remove(&id).is_some_and(|version| version > row.version) {
            return Err(RebuildError::DatabaseBehind(id));
        }
        if live {
            *self.taken.entry(row.order.sku.clone()).or_default() += i64::from(row.order.quantity);
        } else if row.failure.is_some() {
            // The user is free, and the unit may never have existed.
            return Ok(());
        } else {
            self.ended.insert(id);
        }
        let held = RebuiltHolding { ended: !live, order: row.order };
        self.users.entry(held.order.user.clone()).or_default().push(held);
        Ok(())
    }

    /// Call after the last row: the orders left in `waiting` have none.
    fn add_waiting(&mut self) {
        for (order, _) in self.waiting.values() {
            *self.taken.entry(order.sku.clone()).or_default() += i64::from(order.quantity);
            let held = RebuiltHolding { ended: false, order: order.clone() };
            self.users.entry(order.user.clone()).or_default().push(held);
        }
    }

    fn sort(&mut self, rebuy: bool) {
        for held in self.users.values_mut() {
            held.sort_by_key(|held| held.order.number);
            if rebuy {
                drop_oldest_ended(held);
            }
        }
    }
}

impl Rebuild {
    /// Reads the database and loads the gate in one step, which succeeds only if the epoch is still the same. Fails
    /// without a change if the database is older than the log.
    pub async fn load(&self, rebuilding: &Rebuilding, gathered: &Gathered) -> Result<Loaded, RebuildError> {
        let sale = &rebuilding.sale;
        // Read before the rows: every order in it has ended in its row, so the load returns its units.
        let owed = self.store.returning_orders(sale).await?;
        let mut holders = self.read_holders(rebuilding, gathered).await?;
        let row = self.row(sale).await?;
        holders.sort(row.sale.terms.rebuy);
        let items = self.items(&row, &holders.taken).await?;
        let flight: Vec<(&Order, bool)> = holders.waiting.values().map(|held| (&held.0, held.1)).collect();
        if !rebuilding.guard.is_valid_for(Duration::ZERO) {
            return Err(RebuildError::UnderWay(sale.clone()));
        }
        fault!("rebuild.read", return Err(crate::gate::GateError::Unavailable("injected".into()).into()));
        self.gate.refill_outbox(sale, rebuilding.epoch, &flight).await?;
        let users = &holders.users;
        let rebuilt = RebuiltSale { sale: &row.sale, terms_version: row.terms_version, users, items: &items };
        let number = self.gate.load_rebuilt(rebuilding.epoch, &rebuilt).await?;
        fault!("rebuild.loaded", return Err(crate::gate::GateError::Unavailable("injected".into()).into()));
        let returned: Vec<OrderId> = owed.into_iter().filter(|id| holders.ended.contains(id)).collect();
        for ids in returned.chunks(RETURNS_AT_ONCE) {
            self.store.finish_returns(sale, number, ids).await?;
        }
        Ok(Loaded { users: users.len(), in_flight: flight.len(), number })
    }

    async fn read_holders<'a>(
        &self,
        rebuilding: &Rebuilding,
        gathered: &'a Gathered,
    ) -> Result<Holders<'a>, RebuildError> {
        let mut holders = Holders::new(gathered);
        let mut after = None;
        loop {
            let page = self.store.orders_after(&rebuilding.sale, after, PAGE).await?;
            after = page.last().map(|row| row.order.id).or(after);
            let last = (page.len() as u64) < PAGE;
            for row in page {
                holders.add_row(row)?;
            }
            if last {
                break;
            }
        }
        // The log has a row that the database lacks.
        if let Some(id) = holders.versions.keys().next() {
            return Err(RebuildError::DatabaseBehind(*id));
        }
        holders.add_waiting();
        Ok(holders)
    }

    async fn items(
        &self,
        row: &SaleRow,
        taken: &BTreeMap<Sku, i64>,
    ) -> Result<Vec<RebuiltItem>, RebuildError> {
        let pending = self.store.pending_restocks(&row.sale.id).await?;
        let items = row.items.iter().map(|item| {
            // A pending decrease of stock has not reached the row yet, so that change still has to reach the gate.
            let lowers = |restock: &Restock| {
                restock.sku == item.sku && restock.units < 0 && restock.version == item.version
            };
            let version = item.version - i64::from(pending.iter().any(lowers));
            let left = item.stock - taken.get(&item.sku).copied().unwrap_or(0);
            RebuiltItem { sku: item.sku.clone(), left, stock: item.stock, version }
        });
        Ok(items.collect())
    }
}

/// Keeps the newest ended orders of a user. `held` is sorted by number.
fn drop_oldest_ended(held: &mut Vec<RebuiltHolding>) {
    let ended = held.iter().filter(|held| held.ended).count();
    let mut too_many = ended.saturating_sub(ENDED_KEPT);
    held.retain(|held| {
        let dropped = held.ended && too_many > 0;
        too_many -= usize::from(dropped);
        !dropped
    });
}
