//! Order by order: what differs between gate, outbox and database, and why.
//!
//! Safe during a sale. Each order that seems to differ gets a second look, and counts only if it is old enough that no
//! process is still working on it. Gate and database are read page by page, so that the memory does not grow with them.

mod difference;
mod from_log;
mod judge;
mod survey;

use std::time::Duration;

use crate::audit::{Audit, AuditError, Progress, audit_knowing};
use crate::domain::{OrderId, SaleId};
use crate::gate::Gate;
use crate::queue::OrderLog;
use crate::store::Store;

pub use difference::{Difference, DifferenceKind};
use judge::Judge;
use survey::{Found, Survey};

/// The books of a sale, and the orders that differ.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Comparison {
    /// The sums.
    #[serde(flatten)]
    pub books: Audit,
    /// Sorted by kind, then by age.
    pub differences: Vec<Difference>,
    /// So many orders differ that the reading ended early: others may differ, too. Repair these and compare again.
    pub is_cut_short: bool,
}

impl Comparison {
    /// Takes orders that nothing but the gate proves as leaked, so that a repair ends them. A person decides that.
    pub fn accept_loss(&mut self) {
        for difference in &mut self.differences {
            if difference.why == DifferenceKind::Unproven {
                difference.why = DifferenceKind::Leaked;
            }
        }
    }

    /// Whether there is nothing to repair. An order that has waited for long does no harm. If the sale kept selling
    /// during the reading, its sums prove nothing, but its orders do.
    pub fn balances(&self) -> bool {
        let sums = self.books.balances() || (self.books.moved && !self.books.needs_rebuild());
        sums && !self.is_cut_short
            && self.differences.iter().all(|difference| difference.why == DifferenceKind::Waiting)
    }
}

/// How often the sums are read while the sale keeps moving, and the pause between readings.
const READINGS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// How many orders may seem to differ before a comparison ends early. They take about 100 MB; judging them takes a minute or two.
pub const MOST_SUSPECTS: usize = 100_000;

/// What is compared, and how.
#[derive(Clone, Copy)]
pub struct Compare<'a> {
    /// One side of the books.
    pub gate: &'a Gate,
    /// The other side.
    pub store: &'a Store,
    /// Tells lost orders from leaked ones. Without it, both count as leaked.
    pub log: Option<&'a OrderLog>,
    /// Orders accepted less than this ago are left out, because some process is still working on them.
    pub older_than: Duration,
    /// The reading ends early once this many orders seem to differ: [`MOST_SUSPECTS`], or fewer for a quick look.
    pub most: usize,
    /// Where the reading reports its progress.
    pub progress: Progress<'a>,
}

/// Compares a sale order by order. Reads only. If the gate needs a rebuild, it is not compared and `differences` is
/// empty.
pub async fn compare(how: Compare<'_>, sale: &SaleId) -> Result<Comparison, AuditError> {
    let Compare { gate, store, log, older_than, most, progress } = how;
    let books = sums(&how, sale).await?;
    if books.needs_rebuild() {
        return Ok(Comparison { books, differences: Vec::new(), is_cut_short: false });
    }
    let now = gate.clock().await?;
    let is_old = |id: OrderId| id.generated_at().is_some_and(|at| at.plus(older_than) <= now);
    let survey = Survey { gate, store, books: &books, is_old: &is_old, progress };
    let Found { mut suspects, waiting, mut differences, is_cut_short } = survey.read(most).await?;
    suspects.extend(waiting);
    let judge = Judge { gate, store, sale };
    let mut judged = 0;
    for (id, user) in suspects {
        differences.extend(judge.judge(id, &user).await?);
        judged += 1;
        progress("orders looked at again", judged);
    }
    if let Some(log) = log {
        from_log::refine(log, store, sale, &mut differences).await?;
    }
    differences.sort_by_key(|difference| (difference.why, difference.order_id));
    Ok(Comparison { books, differences, is_cut_short })
}

/// Reads the sums, and reads them again if they disagree only because the sale is moving.
async fn sums(how: &Compare<'_>, sale: &SaleId) -> Result<Audit, AuditError> {
    let (mut books, mut known) = audit_knowing(how.gate, how.store, sale, None, how.progress).await?;
    for _ in 1..READINGS {
        if books.balances() || !books.moved {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        (books, known) = audit_knowing(how.gate, how.store, sale, Some(&known), how.progress).await?;
    }
    Ok(books)
}
