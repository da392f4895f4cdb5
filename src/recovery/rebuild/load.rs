//! What the gate is given: the rows, and of the orders without one what was gathered.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::{Gathered, Rebuild, RebuildError, Rebuilding};
use crate::domain::{Number, Order, OrderId, Sku, UserId};
use crate::fault::fault;
use crate::gate::{RebuiltHolding, RebuiltItem, RebuiltSale};

/// Rows in one query.
const PAGE: u64 = 1_000;

/// Ended orders that are remembered of a user, as `settle.lua` does it.
const ENDED_KEPT: usize = 8;

/// What was loaded.
#[derive(Debug, Clone, Copy)]
pub struct Loaded {
    /// Who hold something.
    pub users: usize,
    /// Orders without a row.
    pub in_flight: usize,
    pub(super) number: Number,
}

impl Rebuild {
    /// Reads the database, and loads.
    pub async fn load(&self, rebuilding: &Rebuilding, gathered: &Gathered) -> Result<Loaded, RebuildError> {
        let sale = &rebuilding.sale;
        // Before the rows: what is owed by then has ended in them, and is taken back by the load.
        let owed = self.store.returning_orders(sale).await?;
        let mut waiting: HashMap<OrderId, &(Order, bool)> =
            gathered.accepted.iter().map(|(id, held)| (*id, held)).collect();
        let mut versions = gathered.versions.clone();
        let mut users: BTreeMap<UserId, Vec<RebuiltHolding>> = BTreeMap::new();
        let mut taken: BTreeMap<Sku, i64> = BTreeMap::new();
        let mut ended = HashSet::new();
        let mut after = None;
        loop {
            let page = self.store.orders_after(sale, after, PAGE).await?;
            after = page.last().map(|row| row.order.id).or(after);
            let last = (page.len() as u64) < PAGE;
            for row in page {
                waiting.remove(&row.order.id);
                if versions.remove(&row.order.id).is_some_and(|version| version > row.version) {
                    return Err(RebuildError::DatabaseBehind(row.order.id));
                }
                let live = row.status.is_live();
                if live {
                    *taken.entry(row.order.sku.clone()).or_default() += i64::from(row.order.quantity);
                } else if row.failure.is_some() {
                    // Its user is free, and its unit may never have existed.
                    continue;
                } else {
                    ended.insert(row.order.id);
                }
                let held = RebuiltHolding { ended: !live, order: row.order };
                users.entry(held.order.user.clone()).or_default().push(held);
            }
            if last {
                break;
            }
        }
        if let Some((id, _)) = versions.into_iter().next() {
            return Err(RebuildError::DatabaseBehind(id));
        }
        for (order, _) in waiting.values() {
            *taken.entry(order.sku.clone()).or_default() += i64::from(order.quantity);
            let held = RebuiltHolding { ended: false, order: order.clone() };
            users.entry(order.user.clone()).or_default().push(held);
        }
        let row = self.row(sale).await?;
        for held in users.values_mut() {
            held.sort_by_key(|held| held.order.number);
            if row.sale.terms.rebuy {
                forget(held);
            }
        }
        let pending = self.store.pending_restocks(sale).await?;
        let items: Vec<RebuiltItem> = row
            .items
            .iter()
            .map(|item| {
                // Units that are to be taken away are not yet: that change is still to come.
                let lowers = |restock: &&crate::store::Restock| {
                    restock.sku == item.sku && restock.units < 0 && restock.version == item.version
                };
                let version = item.version - i64::from(pending.iter().any(|restock| lowers(&restock)));
                let left = item.stock - taken.get(&item.sku).copied().unwrap_or(0);
                RebuiltItem { sku: item.sku.clone(), left, stock: item.stock, version }
            })
            .collect();
        let flight: Vec<(&Order, bool)> = waiting.values().map(|held| (&held.0, held.1)).collect();
        if !rebuilding.guard.is_valid_for(Duration::ZERO) {
            return Err(RebuildError::UnderWay(sale.clone()));
        }
        fault!("rebuild.read", return Err(crate::gate::GateError::Unavailable("injected".into()).into()));
        self.gate.refill_outbox(sale, rebuilding.epoch, &flight).await?;
        let rebuilt =
            RebuiltSale { sale: &row.sale, terms_version: row.terms_version, users: &users, items: &items };
        let number = self.gate.load_rebuilt(rebuilding.epoch, &rebuilt).await?;
        fault!("rebuild.loaded", return Err(crate::gate::GateError::Unavailable("injected".into()).into()));
        let returned: Vec<OrderId> = owed.into_iter().filter(|id| ended.contains(id)).collect();
        for ids in returned.chunks(500) {
            self.store.finish_returns(sale, number, ids).await?;
        }
        Ok(Loaded { users: users.len(), in_flight: flight.len(), number })
    }
}

/// Of those that ended the last few are remembered.
fn forget(held: &mut Vec<RebuiltHolding>) {
    let ended = held.iter().filter(|held| held.ended).count();
    let mut too_many = ended.saturating_sub(ENDED_KEPT);
    held.retain(|held| {
        let forgotten = held.ended && too_many > 0;
        too_many -= usize::from(forgotten);
        !forgotten
    });
}
