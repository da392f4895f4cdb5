//! When units of an item were certainly free, so that `sold_out` would have been wrong.

use super::facts::{Facts, is_live};

/// How long after its end an order's unit may still be on its way back to the gate.
const BACK_WITHIN_MS: i64 = 5_000;

/// The intervals in which at least so many units of an item were certainly free, in the order of time. Each order counts
/// from its buyer's first click on, and each restock only from its answer on, so that a doubt is decided for the product.
pub(super) fn certainly_free(facts: &Facts<'_>, sku: &str, at_least: i64) -> Vec<(i64, i64)> {
    let mut steps: Vec<(i64, i64)> = Vec::new();
    for act in facts.case.acts.iter().filter(|act| act.sku == sku) {
        steps.push((if act.units > 0 { act.to_ms } else { act.from_ms }, act.units));
        steps.push((act.from_ms, act.perhaps.min(0)));
    }
    for row in facts.case.books.orders.iter().filter(|row| row.sku == sku) {
        let first = facts.of_user.get(row.user.as_str()).and_then(|calls| calls.first());
        let from = first.map_or(row.accepted_at_ms, |call| call.from_ms.min(row.accepted_at_ms));
        steps.push((from, -row.quantity));
        if let Some(back) = back_at(facts, row.id).filter(|_| !is_live(&row.status)) {
            steps.push((back, row.quantity));
        }
    }
    steps.sort_unstable();
    let mut free = facts.case.sale.items.get(sku).copied().unwrap_or(0);
    let mut since = (free >= at_least).then_some(i64::MIN);
    let mut intervals = Vec::new();
    for (at, units) in steps {
        free += units;
        match since {
            None if free >= at_least => since = Some(at),
            Some(from) if free < at_least => {
                intervals.push((from, at));
                since = None;
            }
            _ => {}
        }
    }
    intervals.extend(since.map(|from| (from, i64::MAX)));
    intervals
}

/// When the unit of an ended order was certainly back; `None` if faults leave that open.
fn back_at(facts: &Facts<'_>, order: uuid::Uuid) -> Option<i64> {
    let ended = facts.ended_at_ms(order)?;
    let back = ended + BACK_WITHIN_MS;
    (!facts.is_disturbed(ended, back)).then_some(back)
}

/// Whether an answer of this interval could have been true only if no unit was free, although one was all the time.
pub(super) fn holds_all_of(intervals: &[(i64, i64)], from_ms: i64, to_ms: i64) -> bool {
    let nth = intervals.partition_point(|(from, _)| *from <= from_ms);
    nth > 0 && intervals[nth - 1].1 >= to_ms
}
