//! What a replay would do, or has done.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::audit::Audit;
use crate::domain::{Millis, SaleId};

/// What became, or would become, of what a source holds. Orders are counted once, however often they
/// stand there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// They get a row: written, or on their way to a worker.
    pub inserted: u64,
    /// The row is older than the entry.
    pub changed: u64,
    /// Their rows are there.
    pub already: u64,
    /// Cancelled, expired or refunded: left so.
    pub ended: u64,
    /// Refused before: left so.
    pub failed: u64,
    /// Refused now, by the last line.
    pub refused: u64,
    /// Somebody else acted for their user the whole time: do it again.
    pub busy: u64,
    /// Nobody can read them.
    pub malformed: u64,
    /// Replayed too often.
    pub quarantined: u64,
    /// On the dead-letter queue: a source of its own.
    pub parked: u64,
    /// Sales, acts and payments that are brought up to date.
    pub others: u64,
}

impl Counts {
    /// What was not done, and is not done by itself.
    pub fn left(&self) -> u64 {
        self.refused + self.busy + self.malformed + self.quarantined
    }

    fn add(&mut self, part: &Self) {
        let Self {
            inserted,
            changed,
            already,
            ended,
            failed,
            refused,
            busy,
            malformed,
            quarantined,
            parked,
            others,
        } = part;
        self.inserted += inserted;
        self.changed += changed;
        self.already += already;
        self.ended += ended;
        self.failed += failed;
        self.refused += refused;
        self.busy += busy;
        self.malformed += malformed;
        self.quarantined += quarantined;
        self.parked += parked;
        self.others += others;
    }

    pub fn orders(&self) -> u64 {
        self.inserted + self.changed + self.already + self.ended + self.failed + self.refused + self.busy
    }
}

/// What a replay would do, or has done.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    pub counts: Counts,
    /// The first of what could not be done, with why.
    pub troubles: Vec<String>,
    /// The log begins later than it was asked for: what was before is not in it.
    pub begins_at: Option<Millis>,
    pub sales: BTreeSet<SaleId>,
    pub seconds: f64,
    /// It is not all, because somebody has asked for the end.
    #[serde(default)]
    pub stopped: bool,
    pub before: Vec<Audit>,
    pub after: Vec<Audit>,
}

/// Troubles that are told one by one.
const TOLD: usize = 20;

impl Report {
    pub(super) fn trouble(&mut self, what: String) {
        if self.troubles.len() < TOLD {
            self.troubles.push(what.chars().take(300).collect());
        }
    }

    /// What became of one batch more: its counts and troubles.
    pub(super) fn add(&mut self, batch: Self) {
        self.counts.add(&batch.counts);
        batch.troubles.into_iter().for_each(|trouble| self.trouble(trouble));
    }

    pub fn is_complete(&self) -> bool {
        self.counts.left() == 0 && self.begins_at.is_none() && !self.stopped
    }

    /// Sales whose books do not balance though nothing moves in them. Not those whose gate is to be
    /// rebuilt, whatever was replayed.
    pub fn out_of_balance(&self) -> impl Iterator<Item = &Audit> {
        self.after.iter().filter(|books| !books.needs_rebuild() && books.is_at_rest() && !books.balances())
    }
}
