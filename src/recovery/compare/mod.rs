//! Order by order: what differs between gate, outbox and database, and why.
//!
//! Safe during a sale. The gate is read first and the rows after it; each order that then seems to differ gets a
//! second look, and counts only if it is old enough that no process is still working on it.

mod difference;
mod from_log;
mod judge;
mod survey;

use std::time::Duration;

use crate::audit::{Audit, AuditError, audit};
use crate::domain::{OrderId, SaleId};
use crate::gate::Gate;
use crate::queue::OrderLog;
use crate::store::Store;

pub use difference::{Difference, DifferenceKind};
use judge::Judge;
use survey::{InGate, Survey};

/// The books of a sale, and every order that differs.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Comparison {
    /// The sums.
    #[serde(flatten)]
    pub books: Audit,
    /// Sorted by kind, then by age.
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Whether there is nothing to repair. An order that has waited for long does no harm. If the sale kept selling
    /// during the reading, its sums prove nothing, but its orders do.
    pub fn balances(&self) -> bool {
        let sums = self.books.balances() || (self.books.moved && !self.books.needs_rebuild());
        sums && self.differences.iter().all(|difference| difference.why == DifferenceKind::Waiting)
    }
}

/// How often the sums are read while the sale keeps moving, and the pause between readings.
const READINGS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// Compares a sale order by order. Reads only. Orders accepted less than `older_than` ago are left out, because some
/// process is still working on them. If the gate needs a rebuild, it is not compared and `differences` is empty.
/// Without `log`, lost orders count as leaked.
pub async fn compare(
    gate: &Gate,
    store: &Store,
    log: Option<&OrderLog>,
    sale: &SaleId,
    older_than: Duration,
) -> Result<Comparison, AuditError> {
    let books = sums(gate, store, sale).await?;
    if books.needs_rebuild() {
        return Ok(Comparison { books, differences: Vec::new() });
    }
    let in_gate = InGate::read(gate, sale).await?;
    let Survey { suspects, mut differences } = Survey::read(store, &books, &in_gate).await?;
    let now = gate.clock().await?;
    let is_old = |id: &OrderId| id.generated_at().is_some_and(|at| at.plus(older_than) <= now);
    let judge = Judge { gate, store, sale };
    for id in suspects.into_iter().filter(is_old) {
        differences.extend(judge.judge(id, in_gate.user_of(id)).await?);
    }
    if let Some(log) = log {
        from_log::refine(log, sale, &mut differences).await?;
    }
    differences.sort_by_key(|difference| (difference.why, difference.order_id));
    Ok(Comparison { books, differences })
}

/// Reads the sums, and reads them again if they disagree only because the sale is moving.
async fn sums(gate: &Gate, store: &Store, sale: &SaleId) -> Result<Audit, AuditError> {
    let mut books = audit(gate, store, sale).await?;
    for _ in 1..READINGS {
        if books.balances() || !books.moved {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        books = audit(gate, store, sale).await?;
    }
    Ok(books)
}
