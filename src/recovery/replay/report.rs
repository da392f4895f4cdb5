//! The report of a replay: what it would do, or has done.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::audit::Audit;
use crate::domain::{Millis, SaleId};

/// What happened to each order of a source, or would happen. An order counts once, however often the source has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Inserted, or queued for a worker.
    pub inserted: u64,
    /// The row was older than the entry and was brought up to date.
    pub changed: u64,
    /// The row was there already.
    pub already: u64,
    /// Cancelled, expired or refunded before; left unchanged.
    pub ended: u64,
    /// Failed before; left unchanged.
    pub failed: u64,
    /// Refused now: by the database for a row, by the broker for a message.
    pub refused: u64,
    /// Another process acted for the user the whole time.
    pub busy: u64,
    /// Unreadable, or impossible.
    pub malformed: u64,
    /// Dead letters that were replayed too often.
    pub quarantined: u64,
    /// On the dead-letter queue, which is a separate source.
    pub parked: u64,
    /// Orders and payments that were surveyed, and no longer in the source when they were to be written.
    #[serde(default)]
    pub vanished: u64,
    /// Sales, acts and payments that were brought up to date.
    pub others: u64,
}

impl Counts {
    /// The number of orders that were not done and will not be done without an operator.
    pub fn left(&self) -> u64 {
        self.refused + self.busy + self.malformed + self.quarantined + self.vanished
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
            vanished,
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
        self.vanished += vanished;
        self.others += others;
    }

    /// Orders that the replay has finished with.
    pub fn orders(&self) -> u64 {
        self.inserted + self.changed + self.already + self.ended + self.failed + self.refused + self.busy
    }
}

/// The result of a plan or a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// What happened to the orders.
    pub counts: Counts,
    /// The first 20 things that could not be done, with the reason.
    pub troubles: Vec<String>,
    /// The start of the log, if it is later than requested: earlier entries are missing.
    pub begins_at: Option<Millis>,
    /// The sales that the replay touches.
    pub sales: BTreeSet<SaleId>,
    /// How long the run took.
    pub seconds: f64,
    /// The database had lost commits.
    #[serde(default)]
    pub was_behind: bool,
    /// The line that the database began, as it is up to date now.
    #[serde(default)]
    pub line: Option<i64>,
    /// The line began although something is missing, because the request accepts that.
    #[serde(default)]
    pub loss_accepted: bool,
    /// The replay was stopped before its end.
    #[serde(default)]
    pub stopped: bool,
    /// The books of those sales before the first change.
    pub before: Vec<Audit>,
    /// Their books after the last change.
    pub after: Vec<Audit>,
}

/// How many troubles are listed.
const TROUBLES: usize = 20;

/// The longest text of a trouble, in characters.
const TROUBLE_LENGTH: usize = 300;

impl Report {
    pub(super) fn trouble(&mut self, text: String) {
        if self.troubles.len() < TROUBLES {
            self.troubles.push(text.chars().take(TROUBLE_LENGTH).collect());
        }
    }

    /// Adds the counts and troubles of one batch.
    pub(super) fn add(&mut self, batch: Self) {
        self.counts.add(&batch.counts);
        batch.troubles.into_iter().for_each(|trouble| self.trouble(trouble));
    }

    /// Whether nothing is left to do and nothing was missing from the source.
    pub fn is_complete(&self) -> bool {
        self.counts.left() == 0 && self.begins_at.is_none() && !self.stopped
    }

    /// Whether the database lacks commits after a run.
    pub fn is_still_behind(&self) -> bool {
        self.was_behind && self.line.is_none()
    }

    /// Sales at rest whose books do not balance. Leaves out sales whose gate must be rebuilt, because no replay
    /// changes that, and those whose rows are out of date.
    pub fn out_of_balance(&self) -> impl Iterator<Item = &Audit> {
        let can_be_judged = |books: &&Audit| !books.needs_rebuild() && !books.database_behind;
        self.after.iter().filter(can_be_judged).filter(|books| books.is_at_rest() && !books.balances())
    }
}
