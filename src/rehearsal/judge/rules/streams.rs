//! What buyers hear who follow their orders by events.

use uuid::Uuid;

use super::floors::at_least;
use crate::rehearsal::judge::call::{Ask, Call};
use crate::rehearsal::judge::facts::Facts;
use crate::rehearsal::judge::rule::{Found, Look};

/// How soon after a change its event counts as in time, under attack: a stream may break, and its front be killed.
const SOON_MS: i64 = 10_000;
/// The part of the events that has to be.
const SHOWN_SOON: f64 = 0.8;

/// The events of each order that somebody follows, in the order in which they came.
fn followed<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = (Uuid, Vec<&'a Call>)> {
    facts.owed().filter_map(|(order, _)| {
        let about = facts.about.get(order)?.iter().copied();
        let mut shown: Vec<&Call> = about.filter(|call| matches!(call.ask, Ask::Follow { .. })).collect();
        shown.sort_by_key(|call| call.to_ms);
        (!shown.is_empty()).then_some((*order, shown))
    })
}

/// Every state of an order, by its row.
pub(super) fn path_of<'a>(facts: &'a Facts<'_>, order: Uuid) -> Vec<&'a str> {
    let changes = facts.changes.get(&order).map(Vec::as_slice).unwrap_or_default();
    let status = facts.rows.get(&order).map(|row| row.status.as_str());
    let first =
        changes.first().map(|change| change.from.as_str()).or(status).filter(|first| *first != "accepted");
    let later = changes.iter().map(|change| change.to.as_str());
    std::iter::once("accepted").chain(first).chain(later).collect()
}

pub(super) fn stream_shows_all(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for (order, calls) in followed(facts) {
        let is = path_of(facts, order);
        let shown: Vec<&str> = calls.iter().map(|call| call.answer.code.as_str()).collect();
        // After a loss a stream begins again, or shows the present state alone. One that has shown an end is over, whatever
        // becomes of that end.
        let is_excused = calls.iter().any(|call| facts.may_be_undone(call));
        let is_over = calls.last().is_some_and(|last| {
            matches!(last.answer.code.as_str(), "expired" | "cancelled") && facts.may_be_undone(last)
        });
        let is_shown = if is_excused { is_over || shown.last() == is.last() } else { shown == is };
        if facts.rows.contains_key(&order) && !is_shown {
            let (shown, is) = (shown.join(", "), is.join(", "));
            found.push(Found::of_order(order, format!("the stream of {order} shown {shown}; it was {is}")));
        }
    }
    found.into_iter().collect()
}

pub(super) fn shown_soon(facts: &Facts<'_>) -> Look {
    let (mut all, mut soon) = (0, 0);
    for (order, calls) in followed(facts) {
        for change in facts.changes.get(&order).map(Vec::as_slice).unwrap_or_default() {
            let Some(event) = calls.iter().find(|call| call.answer.code == change.to) else { continue };
            all += 1;
            soon += usize::from(event.to_ms - change.at_ms <= SOON_MS);
        }
    }
    at_least(SHOWN_SOON, soon, all, "events came within 10 s of their change")
}
