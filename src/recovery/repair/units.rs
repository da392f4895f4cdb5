//! Units that no order explains: the gate has too many left, or too few.

use std::time::Duration;

use super::outcome::{RepairError, Repaired};
use crate::audit::audit;
use crate::domain::SaleId;
use crate::gate::{Adjusted, Gate};
use crate::recovery::compare::{Compare, DifferenceKind, MOST_SUSPECTS, compare};
use crate::store::Store;

/// Corrects the units left in the gate, unless some order still differs, however young: repairing that order later
/// would count its units twice.
pub(super) async fn correct(
    gate: &Gate,
    store: &Store,
    sale: &SaleId,
    repaired: &mut Repaired,
) -> Result<(), RepairError> {
    if audit(gate, store, sale).await?.balances() {
        return Ok(());
    }
    let (log, older_than, most) = (None, Duration::ZERO, MOST_SUSPECTS);
    let how = Compare { gate, store, log, older_than, most, progress: &|_, _| {} };
    let now = compare(how, sale).await?;
    let explains = |kind| {
        !matches!(kind, DifferenceKind::Duplicate | DifferenceKind::Oversold | DifferenceKind::Waiting)
    };
    if now.is_cut_short || now.differences.iter().any(|difference| explains(difference.why)) {
        repaired.left.push("orders still differ: repair them before the units left".into());
        return Ok(());
    }
    adjust(gate, store, sale, repaired).await
}

async fn adjust(
    gate: &Gate,
    store: &Store,
    sale: &SaleId,
    repaired: &mut Repaired,
) -> Result<(), RepairError> {
    let books = audit(gate, store, sale).await?;
    if books.balances() {
        return Ok(());
    }
    if books.needs_rebuild() {
        return Err(RepairError::Rebuild);
    }
    let Some(mut at) = books.number.filter(|_| !books.moved) else {
        let moved = "the sale changed meanwhile, or a change of stock is half way: run it again";
        repaired.left.push(moved.into());
        return Ok(());
    };
    for item in books.items.iter().filter(|item| item.missing() != 0) {
        let missing = item.missing();
        match gate.adjust(sale, &item.sku, missing, at).await? {
            Adjusted::Done { left, number } => {
                // The row records the number, so a Redis that comes back without this write is recognised as being
                // behind.
                store.finish_returns(sale, number, &[]).await?;
                at = number;
                tracing::info!(%sale, sku = %item.sku, units = missing, left, "units left in the gate corrected");
                repaired.done.push(format!("{}: {missing:+} units, {left} left now", item.sku));
            }
            Adjusted::Stale => {
                repaired.left.push(format!("{}: the sale changed meanwhile; run it again", item.sku));
            }
        }
    }
    Ok(())
}
