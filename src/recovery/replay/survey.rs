//! The first pass over the entries: it finds the final state of each order. The later passes write each order once,
//! in that state, and skip the states in between: a cancelled order must not take the unit of the order that got it
//! afterwards.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::reader::Record;
use super::report::Report;
use super::request::Filter;
use crate::domain::{ActEntry, Entry, OrderId, OrderStatus, Place, SaleEntry, SaleId};

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
    /// The highest version of each row, with its status.
    versions: HashMap<OrderId, (i32, OrderStatus)>,
    /// Orders with two different rows of the same version: two histories, between which a replay cannot choose.
    pub(super) forked: BTreeSet<OrderId>,
    /// The highest place of the database in each sale that the log witnesses.
    pub(super) places: BTreeMap<SaleId, Place>,
    accepted: HashSet<OrderId>,
    pub(super) sales: BTreeSet<SaleId>,
    /// Changes to sales, in the order of the source; their versions give the right order.
    pub(super) changes: Vec<SaleEntry>,
    /// Each act on a sale, with its end if it has one.
    pub(super) acts: BTreeMap<(SaleId, String), ActEntry>,
    /// Sales whose orders were deleted for good.
    purged: BTreeSet<SaleId>,
    /// Orders that a later pass has decided on.
    decided: HashSet<OrderId>,
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
                self.accepted.insert(order.id);
            }
            Entry::Order(entry) => self.add_version(entry.order.id, entry.version, entry.status),
            Entry::Sale(entry) => self.changes.push((**entry).clone()),
            Entry::Act(entry) => {
                let key = (entry.sale_id.clone(), entry.key.clone());
                let known = self.acts.entry(key).or_insert_with(|| (**entry).clone());
                if known.state == "pending" {
                    *known = (**entry).clone();
                }
            }
            Entry::Payment(_) => {}
        }
    }

    fn add_version(&mut self, id: OrderId, version: i32, status: OrderStatus) {
        let known = self.versions.entry(id).or_insert((version, status));
        if version > known.0 {
            *known = (version, status);
            self.forked.remove(&id);
        } else if version == known.0 && status != known.1 {
            self.forked.insert(id);
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
        let others = self.accepted.iter().filter(|id| !self.versions.contains_key(id)).count();
        (self.versions.len() + others) as u64
    }

    /// Whether this entry is the one to write for its order. `true` once per order.
    pub(super) fn decides(&mut self, entry: &Entry) -> bool {
        let (id, last) = match entry {
            Entry::Accepted(order) => (order.id, !self.versions.contains_key(&order.id)),
            Entry::Order(entry) => {
                let id = entry.order.id;
                let last = self.versions.get(&id).is_some_and(|(version, _)| *version == entry.version);
                (id, last && !self.forked.contains(&id))
            }
            Entry::Sale(_) | Entry::Act(_) | Entry::Payment(_) => return false,
        };
        last && !self.purged.contains(entry.sale()) && self.decided.insert(id)
    }
}
