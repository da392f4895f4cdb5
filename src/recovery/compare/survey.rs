//! The first reading: all of a sale's orders, in the database and in the gate. It finds orders that seem to differ;
//! because the two are read at different times, each suspect gets a second look.
//!
//! Both are read page by page. A page of rows is compared with what the gate holds for its users, which finds every
//! order that has a row; a page of the gate's holdings is looked up in the database, which finds those that have none.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::difference::{Difference, DifferenceKind};
use crate::audit::{Audit, AuditError, Progress};
use crate::domain::{OrderId, Sku, UserId};
use crate::gate::{Gate, GateError, Holding};
use crate::store::{OrderRow, Store};

/// Orders in flight that one query looks up.
const AT_ONCE: usize = 1_000;

/// Orders that seem to differ. The user is known of those that the gate holds.
pub(super) type Suspects = BTreeMap<OrderId, UserId>;

/// What a survey reads.
pub(super) struct Survey<'a> {
    pub(super) gate: &'a Gate,
    pub(super) store: &'a Store,
    pub(super) books: &'a Audit,
    /// Younger orders are left out: some process is still working on them.
    pub(super) is_old: &'a (dyn Fn(OrderId) -> bool + Sync),
    pub(super) progress: Progress<'a>,
}

/// What a survey has found.
#[derive(Default)]
pub(super) struct Found {
    /// Orders whose row and whose state in the gate seem to disagree.
    pub(super) suspects: Suspects,
    /// Orders in flight without a row. The outbox is bounded, and waiting is no fault.
    pub(super) waiting: Suspects,
    /// Duplicate and oversold orders: the rows alone prove them.
    pub(super) differences: Vec<Difference>,
    /// The reading ended early, because enough suspects were found.
    pub(super) is_cut_short: bool,
}

impl Survey<'_> {
    /// Reads until the end, or until there are `most` suspects.
    pub(super) async fn read(&self, most: usize) -> Result<Found, AuditError> {
        let mut found = Found::default();
        self.read_rows(most, &mut found).await?;
        // A draft is not in the gate yet, and an archived sale no longer is.
        if self.books.number.is_some() && !found.is_cut_short {
            self.read_gate(most, &mut found).await?;
        }
        Ok(found)
    }

    async fn read_rows(&self, most: usize, found: &mut Found) -> Result<(), AuditError> {
        let over: HashSet<&UserId> = self.books.users_over_limit.iter().collect();
        let mut newest = Newest::of(self.books);
        let mut pages = self.store.order_pages(&self.books.sale_id);
        let mut read = 0;
        while let Some(page) = pages.next().await? {
            if self.books.number.is_some() {
                self.suspect_rows(&page, found).await?;
            }
            read += page.len() as u64;
            (self.progress)("orders compared with the gate", read);
            for row in page.into_iter().filter(|row| row.status.is_live()) {
                if over.contains(&row.order.user) {
                    found.differences.push(Difference::of(&row.order, DifferenceKind::Duplicate));
                }
                newest.add(row);
            }
            if found.suspects.len() >= most {
                found.is_cut_short = true;
                return Ok(());
            }
        }
        found.differences.extend(newest.beyond_stock());
        Ok(())
    }

    /// Compares rows with what the gate holds for their users.
    async fn suspect_rows(&self, rows: &[OrderRow], found: &mut Found) -> Result<(), GateError> {
        let sale = &self.books.sale_id;
        let users: BTreeSet<&UserId> = rows.iter().map(|row| &row.order.user).collect();
        let users: Vec<&UserId> = users.into_iter().collect();
        let held = self.gate.holdings_of(sale, &users).await?;
        let held: HashSet<OrderId> =
            held.iter().flatten().filter(|held| is_live(held)).map(|held| held.id).collect();
        let ids: Vec<OrderId> = rows.iter().map(|row| row.order.id).collect();
        let tickets = self.gate.tickets(sale, &ids).await?;
        for (row, ticket) in rows.iter().zip(tickets) {
            let differs = ticket.is_some() || held.contains(&row.order.id) != row.status.is_live();
            if differs && (self.is_old)(row.order.id) {
                found.suspects.insert(row.order.id, row.order.user.clone());
            }
        }
        Ok(())
    }

    /// Looks up in the database what the gate holds, and what is in flight.
    async fn read_gate(&self, most: usize, found: &mut Found) -> Result<(), AuditError> {
        let sale = &self.books.sale_id;
        let in_flight = self.gate.in_flight(sale).await?;
        for tickets in in_flight.chunks(AT_ONCE) {
            let orders = tickets.iter().map(|ticket| (ticket.order.id, &ticket.order.user));
            found.waiting.extend(self.unrecorded(orders.collect()).await?);
        }
        drop(in_flight);
        let mut pages = self.gate.holding_pages(sale);
        let mut read = 0;
        while let Some(page) = pages.next().await? {
            let live = page.iter().filter(|held| is_live(held)).map(|held| (held.id, &held.user));
            found.suspects.extend(self.unrecorded(live.collect()).await?);
            read += page.len() as u64;
            (self.progress)("orders of the gate looked up", read);
            if found.suspects.len() >= most {
                found.is_cut_short = true;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Those of these orders that have no row.
    async fn unrecorded(&self, orders: HashMap<OrderId, &UserId>) -> Result<Suspects, AuditError> {
        let ids: Vec<OrderId> = orders.keys().copied().collect();
        let rows = self.store.row_versions(&ids).await?;
        let unrecorded = orders.into_iter().filter(|(id, _)| !rows.contains_key(id) && (self.is_old)(*id));
        Ok(unrecorded.map(|(id, user)| (id, user.clone())).collect())
    }
}

fn is_live(held: &Holding) -> bool {
    held.quantity > 0
}

/// The newest live orders of each oversold item, as many as can be beyond its stock.
struct Newest(BTreeMap<Sku, (i64, BTreeMap<OrderId, OrderRow>)>);

impl Newest {
    fn of(books: &Audit) -> Self {
        let oversold = books.items.iter().filter(|item| item.oversold() > 0);
        Self(oversold.map(|item| (item.sku.clone(), (item.oversold(), BTreeMap::new()))).collect())
    }

    fn add(&mut self, row: OrderRow) {
        let Some((beyond, newest)) = self.0.get_mut(&row.order.sku) else { return };
        newest.insert(row.order.id, row);
        // Each order has at least one unit.
        if newest.len() as i64 > *beyond {
            newest.pop_first();
        }
    }

    fn beyond_stock(self) -> Vec<Difference> {
        let mut differences = Vec::new();
        for (mut beyond, newest) in self.0.into_values() {
            for row in newest.into_values().rev() {
                if beyond <= 0 {
                    break;
                }
                beyond -= i64::from(row.order.quantity);
                differences.push(Difference::of(&row.order, DifferenceKind::Oversold));
            }
        }
        differences
    }
}
