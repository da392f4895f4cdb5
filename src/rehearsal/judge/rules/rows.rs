//! Promises about rows.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::rehearsal::judge::books::{OrderRow, PaymentRow};
use crate::rehearsal::judge::call::{Ask, Call};
use crate::rehearsal::judge::case::Intent;
use crate::rehearsal::judge::facts::{ARROWS, Facts};
use crate::rehearsal::judge::rule::{Found, Look};

pub(super) fn path_of_arrows(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for row in &facts.case.books.orders {
        let changes = facts.changes.get(&row.id).map(Vec::as_slice).unwrap_or_default();
        let mut at: Option<&str> = None;
        for change in changes {
            let fits = at.is_none_or(|at| at == change.from);
            if !fits || !ARROWS.contains(&(change.from.as_str(), change.to.as_str())) {
                found.push(Found::of_order(
                    row.id,
                    format!(
                        "{} went from {} to {} (version {})",
                        row.id, change.from, change.to, change.version
                    ),
                ));
            }
            at = Some(&change.to);
        }
        if at.is_some_and(|at| at != row.status) {
            found.push(Found::of_order(
                row.id,
                format!(
                    "{} is {}, but its last change led to {}",
                    row.id,
                    row.status,
                    at.unwrap_or_default()
                ),
            ));
        }
    }
    found.into_iter().collect()
}

pub(super) fn somebody_asked(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for row in &facts.case.books.orders {
        let calls = facts.of_user.get(row.user.as_str()).map(Vec::as_slice).unwrap_or_default();
        if !calls.iter().any(|call| matches!(call.ask, Ask::Buy { .. })) {
            found.push(Found::of_order(row.id, format!("{} never clicked, but has {}", row.user, row.id)));
        }
        let paid = |intent: Option<&Intent>| intent.is_some_and(|intent| intent.pays());
        let retaken = || facts.case.books.payments.iter().any(|payment| payment.new_order == Some(row.id));
        let asked = match row.status.as_str() {
            "paid" => paid(facts.intents.get(&row.id)) || retaken(),
            // A replay ends an order whose unit the gate has back as cancelled.
            "cancelled" => {
                facts.intents.get(&row.id) == Some(&Intent::Cancels)
                    || facts.may_have_ended_in_replay(row.id)
                    || is_retaken_in_vain(facts, row, &["late"])
            }
            "expired" => facts.case.sale.pay_within_ms.is_some(),
            _ => true,
        };
        if !asked {
            found.push(Found::of_order(
                row.id,
                format!("{} is {}, though nobody asked for that", row.id, row.status),
            ));
        }
    }
    found.into_iter().collect()
}

/// Whether a late payment, which is in one of these states now, may have taken the order: it is cancelled, or expires, if
/// another try has ended the payment meanwhile.
fn is_retaken_in_vain(facts: &Facts<'_>, row: &OrderRow, states: &[&str]) -> bool {
    let of_user =
        |payment: &PaymentRow| facts.rows.get(&payment.order).is_some_and(|paid| paid.user == row.user);
    let mut ended =
        facts.case.books.payments.iter().filter(|payment| states.contains(&payment.state.as_str()));
    facts.case.sale.rebuy && !facts.given.contains_key(&row.id) && ended.any(of_user)
}

/// A refusal that no later order of the same click may contradict.
fn is_final(code: &str) -> bool {
    matches!(code, "sold_out" | "sale_closed")
}

/// How long a call of Redis may still be carried out after its front has died.
const CARRIED_OUT_WITHIN_MS: i64 = 2_000;

/// An order that nobody was given belongs to a click whose buyer does not know what became of it: to one whose last answer
/// was no refusal, or came while an attempt without an answer could still be carried out.
pub(super) fn nobody_refused_has_one(facts: &Facts<'_>) -> Look {
    let of_payments: BTreeSet<Uuid> =
        facts.case.books.payments.iter().filter_map(|payment| payment.new_order).collect();
    let mut found = Vec::new();
    for row in &facts.case.books.orders {
        let is_explained = facts.given.contains_key(&row.id) || of_payments.contains(&row.id);
        if is_explained || row.status == "cancelled" || is_retaken_in_vain(facts, row, &["late", "retaken"]) {
            continue;
        }
        let mut clicks: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
        for call in facts.of_user.get(row.user.as_str()).into_iter().flatten() {
            if let Ask::Buy { key, .. } = &call.ask {
                clicks.entry(key).or_default().push(call);
            }
        }
        if !clicks.values().any(|attempts| may_have_taken_one(facts, attempts)) {
            found.push(Found::of_order(
                row.id,
                format!("{} was refused every click that got no order, but has {}", row.user, row.id),
            ));
        }
    }
    found.into_iter().collect()
}

/// Whether an order that nobody was given may be that of these attempts of one click.
fn may_have_taken_one(facts: &Facts<'_>, attempts: &[&Call]) -> bool {
    if attempts.iter().any(|call| call.answer.gives_order()) {
        return false;
    }
    let Some(last) = attempts.iter().max_by_key(|call| call.to_ms) else { return false };
    let still_runs = |call: &&Call| {
        call.answer.is_unknown()
            && call.from_ms <= last.to_ms
            && last.from_ms <= call.to_ms + CARRIED_OUT_WITHIN_MS
    };
    !is_final(&last.answer.code)
        || facts.is_in_loss(last.to_ms, LOADED_WITHIN_MS)
        || attempts.iter().copied().any(|call| still_runs(&call))
}

/// How long after a loss an order may still be missing that only its message has.
const LOADED_WITHIN_MS: i64 = 60_000;

pub(super) fn at_rest(facts: &Facts<'_>) -> Look {
    let books = &facts.case.books;
    let mut found = Vec::new();
    if books.gate.outbox > 0 {
        found.push(Found::new(format!("{} orders wait in the outbox", books.gate.outbox)));
    }
    if books.returning > 0 {
        found.push(Found::new(format!("the units of {} ended orders are not back", books.returning)));
    }
    if books.webhooks_waiting > 0 {
        found.push(Found::new(format!("{} webhooks wait", books.webhooks_waiting)));
    }
    let waits =
        |payment: &&PaymentRow| payment.state == "pending" && !facts.lost_with_redis.contains(&payment.order);
    let pending = books.payments.iter().filter(waits).count();
    if pending > 0 {
        found.push(Found::new(format!("{pending} payments are pending")));
    }
    if facts.case.sale.pay_within_ms.is_some() {
        let payable = books.orders.iter().filter(|row| row.status == "confirmed").count();
        if payable > 0 {
            found.push(Found::new(format!("{payable} orders are neither paid nor ended")));
        }
    }
    found.into_iter().collect()
}
