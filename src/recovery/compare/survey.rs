//! The first reading: all of a sale's orders, in the gate and in the database. It finds orders that seem to differ;
//! because the two are read at different times, each suspect gets a second look.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::difference::{Difference, DifferenceKind};
use crate::audit::{Audit, AuditError};
use crate::domain::{Order, OrderId, SaleId, Sku, UserId};
use crate::gate::{Gate, GateError, Holding};
use crate::store::{OrderRow, Store};

/// Rows in one query.
const PAGE: u64 = 1_000;

/// The gate's view of a sale.
pub(super) struct InGate {
    in_flight: HashMap<OrderId, Order>,
    holdings: HashMap<OrderId, Holding>,
    loaded: bool,
}

impl InGate {
    pub(super) async fn read(gate: &Gate, sale: &SaleId) -> Result<Self, GateError> {
        let in_flight = gate.in_flight(sale).await?.into_iter();
        let in_flight = in_flight.map(|ticket| (ticket.order.id, ticket.order)).collect();
        let holdings = gate.holdings(sale).await?.into_iter().map(|holding| (holding.id, holding)).collect();
        let loaded = gate.describe(sale).await?.is_some();
        Ok(Self { in_flight, holdings, loaded })
    }

    pub(super) fn user_of(&self, id: OrderId) -> Option<&UserId> {
        let held = self.holdings.get(&id).map(|holding| &holding.user);
        held.or(self.in_flight.get(&id).map(|order| &order.user))
    }

    fn seems_to_differ(&self, row: &OrderRow) -> bool {
        let id = row.order.id;
        let held = self.holdings.get(&id).is_some_and(|holding| holding.quantity > 0);
        self.loaded && (self.in_flight.contains_key(&id) || held != row.status.is_live())
    }

    fn orders(&self) -> impl Iterator<Item = OrderId> {
        let held = self.holdings.values().filter(|holding| holding.quantity > 0).map(|holding| holding.id);
        held.chain(self.in_flight.keys().copied())
    }
}

/// The result of the first reading.
#[derive(Default)]
pub(super) struct Survey {
    /// Orders whose row and whose state in the gate seem to disagree.
    pub(super) suspects: BTreeSet<OrderId>,
    /// Duplicate and oversold orders: the rows alone prove them.
    pub(super) differences: Vec<Difference>,
}

impl Survey {
    /// The gate must be read before, so that an order that gets its row meanwhile is a suspect instead of overlooked.
    pub(super) async fn read(store: &Store, books: &Audit, in_gate: &InGate) -> Result<Self, AuditError> {
        let mut survey = Self::default();
        let mut seen = HashSet::new();
        let mut live: BTreeMap<Sku, Vec<OrderRow>> = BTreeMap::new();
        let over: HashSet<&UserId> = books.users_over_limit.iter().collect();
        let oversold = |sku: &Sku| books.items.iter().any(|item| item.sku == *sku && item.oversold() > 0);
        let mut after = None;
        loop {
            let page = store.orders_after(&books.sale_id, after, PAGE).await?;
            after = page.last().map(|row| row.order.id).or(after);
            let last = (page.len() as u64) < PAGE;
            for row in page {
                seen.insert(row.order.id);
                if in_gate.seems_to_differ(&row) {
                    survey.suspects.insert(row.order.id);
                }
                if row.status.is_live() && over.contains(&row.order.user) {
                    survey.differences.push(Difference::of(&row.order, DifferenceKind::Duplicate));
                }
                if row.status.is_live() && oversold(&row.order.sku) {
                    live.entry(row.order.sku.clone()).or_default().push(row);
                }
            }
            if last {
                break;
            }
        }
        survey.suspects.extend(in_gate.orders().filter(|id| !seen.contains(id)));
        survey.name_oversold(books, live);
        Ok(survey)
    }

    /// The newest orders of an oversold item are the ones beyond its stock.
    fn name_oversold(&mut self, books: &Audit, mut live: BTreeMap<Sku, Vec<OrderRow>>) {
        for item in &books.items {
            let mut beyond = item.oversold();
            for row in live.remove(&item.sku).unwrap_or_default().into_iter().rev() {
                if beyond <= 0 {
                    break;
                }
                beyond -= i64::from(row.order.quantity);
                self.differences.push(Difference::of(&row.order, DifferenceKind::Oversold));
            }
        }
    }
}
