//! Promises about payments and deadlines.

use std::collections::HashMap;

use uuid::Uuid;

use crate::rehearsal::judge::call::{Ask, Call};
use crate::rehearsal::judge::case::Intent;
use crate::rehearsal::judge::facts::Facts;
use crate::rehearsal::judge::rule::{Found, Look};

/// The most by which the clocks of database and crowd, which share a host, may differ.
const SKEW_MS: i64 = 50;

/// The calls that ask for a payment, each with its event.
fn pays<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (Uuid, &'a str, &'a Call)> {
    facts.case.calls.iter().filter_map(|call| match &call.ask {
        Ask::Pay { order, event } => Some((*order, event.as_str(), call)),
        _ => None,
    })
}

pub(super) fn paid_stays_paid(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for (order, _, call) in pays(facts) {
        let paid = match call.answer.code.as_str() {
            "applied" => order,
            "retaken" => match call.answer.new_order {
                Some(new_order) => new_order,
                None => {
                    found.push(Found::of_order(
                        order,
                        format!("{order} was retaken by an order without an id"),
                    ));
                    continue;
                }
            },
            _ => continue,
        };
        let is = facts.rows.get(&paid).map_or("missing", |row| row.status.as_str());
        if is != "paid" {
            found.push(Found::of_order(
                paid,
                format!("the payment of {paid} was applied, but the order is {is}"),
            ));
        }
    }
    found.into_iter().collect()
}

/// Money is named if its payment says where it went: to the order that it pays, or that it came too late or for the wrong
/// order and has to go back.
pub(super) fn money_is_named(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for payment in &facts.case.books.payments {
        let paid = match payment.state.as_str() {
            "applied" => payment.order,
            "retaken" => payment.new_order.unwrap_or(payment.order),
            // One that still waits is for `at-rest` to judge.
            "late" | "mismatch" | "refunded" | "pending" => continue,
            state => {
                let event = &payment.event;
                found.push(Found::of_order(payment.order, format!("{event} is {state} in the end")));
                continue;
            }
        };
        let is = facts.rows.get(&paid).map_or("missing", |row| row.status.as_str());
        if !matches!(is, "paid" | "refunded") {
            let (event, state) = (&payment.event, &payment.state);
            found.push(Found::of_order(paid, format!("{event} is {state}, and its order is {is}")));
        }
    }
    found.into_iter().collect()
}

/// The agreed deadline of an order, counted from its row; `None` if nobody has to pay.
fn deadline(facts: &Facts<'_>, order: Uuid) -> Option<i64> {
    Some(facts.rows.get(&order)?.recorded_at_ms + facts.case.sale.pay_within_ms?)
}

pub(super) fn in_time_is_in_time(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for (order, event, call) in pays(facts) {
        let late = matches!(call.answer.code.as_str(), "late" | "retaken");
        let in_time = deadline(facts, order).is_some_and(|deadline| call.to_ms + SKEW_MS < deadline);
        let cancelled = facts.rows.get(&order).is_some_and(|row| row.status == "cancelled")
            && (facts.intents.get(&order) == Some(&Intent::Cancels) || facts.may_have_ended_in_replay(order));
        if late && in_time && !cancelled {
            found.push(Found::of_order(
                order,
                format!("{event} was answered {} before its deadline", call.answer.code),
            ));
        }
    }
    found.into_iter().collect()
}

pub(super) fn never_expired_early(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for (order, changes) in &facts.changes {
        for change in changes.iter().filter(|change| change.to == "expired") {
            match deadline(facts, *order) {
                Some(deadline) if change.at_ms + SKEW_MS >= deadline => {}
                Some(deadline) => found.push(Found::of_order(
                    *order,
                    format!(
                        "{order} expired {} ms before its time to pay had passed",
                        deadline - change.at_ms
                    ),
                )),
                None => {
                    found.push(Found::of_order(*order, format!("{order} expired, though nobody has to pay")))
                }
            }
        }
    }
    found.into_iter().collect()
}

pub(super) fn payment_counts_once(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for (order, event, call) in pays(facts).filter(|(_, _, call)| call.answer.is_success()) {
        let answered = call.answer.code.as_str();
        let Some(row) = facts.payments.get(event) else {
            found.push(Found::of_order(order, format!("{event} was answered {answered}, but has no row")));
            continue;
        };
        if row.order != order || (answered != "pending" && row.state != answered) {
            found.push(Found::of_order(
                order,
                format!("{event} was answered {answered}, but its row is {} for {}", row.state, row.order),
            ));
        }
    }
    let mut payments: HashMap<Uuid, u32> = HashMap::new();
    for payment in &facts.case.books.payments {
        match payment.state.as_str() {
            "applied" => *payments.entry(payment.order).or_default() += 1,
            "retaken" => *payments.entry(payment.new_order.unwrap_or(payment.order)).or_default() += 1,
            _ => {}
        }
    }
    for row in facts.case.books.orders.iter().filter(|row| row.status == "paid") {
        let count = payments.get(&row.id).copied().unwrap_or(0);
        if count != 1 {
            found.push(Found::of_order(row.id, format!("{} is paid, by {count} payments", row.id)));
        }
    }
    found.into_iter().collect()
}
