//! A case: everything that the judge decides from, and the folder that keeps it for another look.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::books::Books;
use super::call::Call;

/// Everything that the judge decides from.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Case {
    /// What was on sale, and on which terms.
    pub sale: Sale,
    /// Orders whose buyers meant to pay or to cancel.
    pub intents: Vec<(Uuid, Intent)>,
    /// What the operator did.
    pub acts: Vec<OperatorAct>,
    /// What the nemesis did.
    pub outages: Vec<Outage>,
    /// When every server and process had answered after the last fault.
    pub healed_at_ms: i64,
    /// When the books were at rest, or when waiting for that ended.
    pub rest_at_ms: i64,
    /// What Redis and the database held then.
    pub books: Books,
    /// What a shop took of webhooks, in the order in which it came; `None` if none had an endpoint.
    #[serde(default)]
    pub webhooks: Option<Vec<Webhook>>,
    /// What a shop was given of the sale itself, in the order in which it came; `None` if none had an endpoint.
    #[serde(default)]
    pub sale_webhooks: Option<Vec<String>>,
    /// Every call, in the order of its answer. Kept in a file of its own.
    #[serde(skip)]
    pub calls: Vec<Call>,
}

/// A webhook that a shop took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// When, by the clock of the crowd.
    pub at_ms: i64,
    /// The order.
    pub order: Uuid,
    /// The version that the order's row had then.
    pub version: i64,
    /// The state that it said.
    pub state: String,
}

/// What was on sale.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Sale {
    /// Its id.
    pub id: String,
    /// Units of each item at the beginning.
    pub items: BTreeMap<String, i64>,
    /// Units per buyer.
    pub limit: i64,
    /// Milliseconds that a buyer has to pay; `None` if nobody has to.
    pub pay_within_ms: Option<i64>,
    /// Whether a buyer may buy again after an order has ended.
    pub rebuy: bool,
}

/// What a buyer means to do with an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// To pay at once.
    Pays,
    /// To pay after the deadline.
    PaysLate,
    /// To cancel.
    Cancels,
    /// Nothing.
    NeverPays,
}

impl Intent {
    /// Whether the buyer means to pay, in time or late.
    pub fn pays(self) -> bool {
        matches!(self, Self::Pays | Self::PaysLate)
    }
}

/// What the operator asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OperatorAct {
    /// When it was first sent.
    pub from_ms: i64,
    /// When its last answer was there.
    pub to_ms: i64,
    /// The verb and the body of the request.
    pub act: String,
    /// `done`, a code of the contract, or why there was no answer.
    pub answer: String,
    /// The item whose stock it changes; empty if it changes none.
    pub sku: String,
    /// Units added to the stock, negative if removed.
    pub units: i64,
    /// The same if no answer says whether the act was carried out.
    pub perhaps: i64,
}

/// A fault of the nemesis, from its beginning until it was healed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outage {
    /// When it began.
    pub from_ms: i64,
    /// When the nemesis had healed it, and what it had killed was running again.
    pub to_ms: i64,
    /// The fault with its parameters.
    pub fault: String,
    /// Why it had no effect.
    pub missed: Option<String>,
    /// The server that loses data which it had acknowledged.
    pub loses: Option<String>,
    /// The end of an order that was only read in this interval may be undone, as the documents say: the order log may get it
    /// up to a second after the database.
    pub may_undo: Option<(i64, i64)>,
}

/// Why a case could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// A file could not be written or read.
    #[error("{file}: {why}")]
    File {
        /// The file.
        file: String,
        /// The reason.
        why: std::io::Error,
    },
    /// A file is not what [`Case::keep`] writes.
    #[error("{file} is not part of a case: {why}")]
    Unreadable {
        /// The file.
        file: String,
        /// The reason.
        why: serde_json::Error,
    },
}

const CASE: &str = "case.json";
const CALLS: &str = "calls.jsonl";

impl Case {
    /// Writes the case into a folder: `case.json`, and `calls.jsonl` with a call on each line.
    pub fn keep(&self, folder: &Path) -> Result<(), CaseError> {
        let (case, calls) = (folder.join(CASE), folder.join(CALLS));
        std::fs::create_dir_all(folder).map_err(|why| failed(folder, why))?;
        let file = std::fs::File::create(&case).map_err(|why| failed(&case, why))?;
        serde_json::to_writer(BufWriter::new(file), self).map_err(|why| unreadable(&case, why))?;
        let file = std::fs::File::create(&calls).map_err(|why| failed(&calls, why))?;
        let mut lines = BufWriter::new(file);
        for call in &self.calls {
            let line = serde_json::to_string(call).map_err(|why| unreadable(&calls, why))?;
            writeln!(lines, "{line}").map_err(|why| failed(&calls, why))?;
        }
        lines.flush().map_err(|why| failed(&calls, why))
    }

    /// Reads what [`Case::keep`] wrote.
    pub fn open(folder: &Path) -> Result<Self, CaseError> {
        let (case, calls) = (folder.join(CASE), folder.join(CALLS));
        let file = std::fs::File::open(&case).map_err(|why| failed(&case, why))?;
        let mut read: Self =
            serde_json::from_reader(BufReader::new(file)).map_err(|why| unreadable(&case, why))?;
        let file = std::fs::File::open(&calls).map_err(|why| failed(&calls, why))?;
        for line in BufReader::new(file).lines() {
            let line = line.map_err(|why| failed(&calls, why))?;
            read.calls.push(serde_json::from_str(&line).map_err(|why| unreadable(&calls, why))?);
        }
        Ok(read)
    }
}

fn failed(file: &Path, why: std::io::Error) -> CaseError {
    CaseError::File { file: file.display().to_string(), why }
}

fn unreadable(file: &Path, why: serde_json::Error) -> CaseError {
    CaseError::Unreadable { file: file.display().to_string(), why }
}
