//! The first reading: what became of each order in the end. So those after it write each order
//! once, as it ended, and not the way that it took: an order that was cancelled must not take a unit
//! from the one that got it afterwards.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::entries::Piece;
use super::{Filter, Report};
use crate::domain::{ActEntry, Entry, OrderId, OrderStatus, SaleEntry, SaleId};

/// Those that are written in one reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    Ended,
    Live,
    Payments,
}

impl Turn {
    /// `None` for what is written from the survey.
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
    /// Of which there is something: for the others nothing is read again.
    pub(super) turns: BTreeSet<Turn>,
    /// Orders that have a row, as their highest version has them.
    versions: HashMap<OrderId, (i32, OrderStatus)>,
    /// Those that two histories have taken different ways with: which of them counts is not for us to say.
    pub(super) forked: BTreeSet<OrderId>,
    accepted: HashSet<OrderId>,
    pub(super) sales: BTreeSet<SaleId>,
    /// As they come; the versions in them sort it out.
    pub(super) changes: Vec<SaleEntry>,
    /// Each act upon a sale, with its end if it has one.
    pub(super) acts: BTreeMap<(SaleId, String), ActEntry>,
    /// Sales whose orders were forgotten for good.
    forgotten: BTreeSet<SaleId>,
    /// Written by now.
    done: HashSet<OrderId>,
}

impl Survey {
    pub(super) fn look(&mut self, piece: &Piece, filter: &Filter, report: &mut Report) {
        for entry in &piece.entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(why) => {
                    report.counts.malformed += 1;
                    report.trouble(format!("{}: {why}", piece.position));
                    continue;
                }
            };
            // What was forgotten is forgotten, whatever is asked for.
            if let Entry::Act(act) = entry
                && act.act == "purge"
                && act.state == "done"
            {
                self.forgotten.insert(act.sale_id.clone());
            }
            if !filter.takes_entry(entry) {
                continue;
            }
            if !self.sales.contains(entry.sale()) {
                self.sales.insert(entry.sale().clone());
            }
            self.turns.extend(Turn::of(entry));
            match entry {
                Entry::Accepted(order) => {
                    self.accepted.insert(order.id);
                }
                Entry::Order(entry) => {
                    let id = entry.order.id;
                    let known = self.versions.entry(id).or_insert((entry.version, entry.status));
                    if entry.version > known.0 {
                        *known = (entry.version, entry.status);
                        self.forked.remove(&id);
                    } else if entry.version == known.0 && entry.status != known.1 {
                        self.forked.insert(id);
                    }
                }
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
    }

    pub(super) fn forget(&mut self, sale: SaleId) {
        self.forgotten.insert(sale);
    }

    /// Orders, each counted once.
    pub(super) fn orders(&self) -> u64 {
        let others = self.accepted.iter().filter(|id| !self.versions.contains_key(id)).count();
        (self.versions.len() + others) as u64
    }

    /// Is it this entry that tells how the order ended? Once for each order.
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
        last && !self.forgotten.contains(entry.sale()) && self.done.insert(id)
    }

    pub(super) fn is_forgotten(&self, sale: &SaleId) -> bool {
        self.forgotten.contains(sale)
    }
}
