//! The first pass over the entries: it finds the final state of each order. The later passes write each order once,
//! in that state, and skip the states in between: a cancelled order must not take the unit of the order that got it
//! afterwards.

use std::collections::{BTreeMap, BTreeSet};

use super::order_states::{OrderState, OrderStates};
use super::reader::Record;
use super::report::Report;
use super::request::Filter;
use crate::domain::{ActEntry, Entry, OrderEntry, OrderId, Place, SaleEntry, SaleId};

/// A later pass over the entries, by what it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pass {
    Ended,
    Live,
    Payments,
}

impl Pass {
    /// `None` for entries that are written from the survey itself.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        match entry {
            Entry::Payment(_) => Some(Self::Payments),
            Entry::Order(entry) if !entry.status.is_live() => Some(Self::Ended),
            Entry::Accepted(_) | Entry::Order(_) => Some(Self::Live),
            Entry::Sale(_) | Entry::Act(_) => None,
        }
    }
}

#[derive(Default)]
pub(super) struct Survey {
    /// The passes that have something to write; the others are skipped.
    pub(super) passes: BTreeSet<Pass>,
    states: OrderStates,
    /// Orders with two different rows of the same version: two histories, between which a replay cannot choose.
    pub(super) forked: BTreeSet<OrderId>,
    /// The highest place of the database in each sale that the log witnesses.
    pub(super) places: BTreeMap<SaleId, Place>,
    pub(super) sales: BTreeSet<SaleId>,
    /// Changes to sales, in the order of the source; their versions give the right order.
    pub(super) changes: Vec<SaleEntry>,
    /// Each act on a sale, with its end if it has one.
    pub(super) acts: BTreeMap<(SaleId, String), ActEntry>,
    /// Sales whose orders were deleted for good.
    purged: BTreeSet<SaleId>,
    /// Payments that the later pass has not met yet.
    unmet_payments: u64,
}

impl Survey {
    /// Adds what `record` says; unreadable entries go to the report.
    pub(super) fn add(&mut self, record: &Record, filter: &Filter, report: &mut Report) {
        for (sale, place) in &record.places {
            let known = self.places.entry(sale.clone()).or_default();
            *known = (*known).max(*place);
        }
        for entry in &record.entries {
            match entry {
                Ok(entry) => self.add_entry(entry, filter),
                Err(why) => {
                    report.counts.malformed += 1;
                    report.trouble(format!("{}: {why}", record.position));
                }
            }
        }
    }

    fn add_entry(&mut self, entry: &Entry, filter: &Filter) {
        // A purge counts regardless of the filter: deleted orders must not come back.
        if let Entry::Act(act) = entry
            && act.act == "purge"
            && act.state == "done"
        {
            self.purged.insert(act.sale_id.clone());
        }
        if !filter.passes_entry(entry) {
            return;
        }
        if !self.sales.contains(entry.sale()) {
            self.sales.insert(entry.sale().clone());
        }
        self.passes.extend(Pass::of(entry));
        match entry {
            Entry::Accepted(order) => {
                if self.states.get(order.id).is_none() {
                    self.states.set(order.id, OrderState::ACCEPTED);
                }
            }
            Entry::Order(entry) => self.add_version(entry),
            Entry::Sale(entry) => self.changes.push((**entry).clone()),
            Entry::Act(entry) => {
                let key = (entry.sale_id.clone(), entry.key.clone());
                let known = self.acts.entry(key).or_insert_with(|| (**entry).clone());
                if known.state == "pending" {
                    *known = (**entry).clone();
                }
            }
            Entry::Payment(_) => self.unmet_payments += 1,
        }
    }

    /// Called for each payment of the later pass.
    pub(super) fn meet_payment(&mut self) {
        // The log may have got more of them meanwhile.
        self.unmet_payments = self.unmet_payments.saturating_sub(1);
    }

    fn add_version(&mut self, entry: &OrderEntry) {
        let (id, state) =
            (entry.order.id, OrderState { version: entry.version, status: entry.status, is_decided: false });
        match self.states.get(id) {
            Some(known) if known.version == state.version => {
                if known.status != state.status {
                    self.forked.insert(id);
                }
            }
            Some(known) if known.version > state.version => {}
            _ => {
                self.states.set(id, state);
                self.forked.remove(&id);
            }
        }
    }

    /// Excludes the orders of a sale.
    pub(super) fn purge(&mut self, sale: SaleId) {
        self.purged.insert(sale);
    }

    pub(super) fn is_purged(&self, sale: &SaleId) -> bool {
        self.purged.contains(sale)
    }

    /// The number of distinct orders.
    pub(super) fn orders(&self) -> u64 {
        self.states.len()
    }

    /// Whether this entry is the one to write for its order. `true` once per order, and never for one that is left out.
    pub(super) fn decides(&mut self, entry: &Entry) -> bool {
        let Some((id, state)) = self.last_of(entry) else { return false };
        self.states.set(id, OrderState { is_decided: true, ..state });
        !self.leaves_out(id, entry.sale())
    }

    /// The same without deciding.
    pub(super) fn is_last(&self, entry: &Entry) -> bool {
        self.last_of(entry).is_some_and(|(id, _)| !self.leaves_out(id, entry.sale()))
    }

    /// The number of orders and payments that no later pass has met. After the last pass, the source no longer has them.
    pub(super) fn unmet(&self) -> u64 {
        self.states.undecided() + self.unmet_payments
    }

    /// The order of an entry, if this is the last that the source says of it and nothing was decided yet.
    fn last_of(&self, entry: &Entry) -> Option<(OrderId, OrderState)> {
        let (id, version) = match entry {
            Entry::Accepted(order) => (order.id, OrderState::ACCEPTED.version),
            Entry::Order(entry) => (entry.order.id, entry.version),
            Entry::Sale(_) | Entry::Act(_) | Entry::Payment(_) => return None,
        };
        let state = self.states.get(id).filter(|state| state.version == version && !state.is_decided)?;
        Some((id, state))
    }

    fn leaves_out(&self, order: OrderId, sale: &SaleId) -> bool {
        self.forked.contains(&order) || self.purged.contains(sale)
    }
}
