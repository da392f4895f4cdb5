//! Promises about what buyers hear.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use crate::rehearsal::judge::call::{Ask, Call};
use crate::rehearsal::judge::case::OperatorAct;
use crate::rehearsal::judge::facts::{Buy, Facts, leads_to};
use crate::rehearsal::judge::free_units::{certainly_free, holds_all_of};
use crate::rehearsal::judge::rule::{Found, Look};

/// How old a refusal's reading may be: 4 ms are promised, and times are rounded to a millisecond at both ends.
const STALE_MS: i64 = 6;

pub(super) fn accepted_is_kept(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for (order, calls) in facts.owed() {
        let is = facts.rows.get(order).map_or("missing", |row| row.status.as_str());
        let user = calls.first().map_or("", |call| call.user.as_str());
        if matches!(is, "missing" | "failed") {
            found.push(Found {
                order: Some(*order),
                ..Found::of_user(user, format!("{user} was given {order}, which is {is}"))
            });
        }
        let owner = facts.rows.get(order).map_or(user, |row| row.user.as_str());
        if let Some(call) = calls.iter().find(|call| call.user != owner) {
            found.push(Found::of_order(
                *order,
                format!("{} was given {order}, which is {owner}'s", call.user),
            ));
        }
        found.extend(calls.iter().find_map(|call| not_what_was_asked(facts, *order, call)));
    }
    found.into_iter().collect()
}

/// The order holds what this click asked for.
fn not_what_was_asked(facts: &Facts<'_>, order: Uuid, call: &Call) -> Option<Found> {
    let (row, Ask::Buy { sku, quantity, .. }) = (facts.rows.get(&order)?, &call.ask) else { return None };
    (row.sku != *sku || row.quantity != *quantity).then(|| {
        let user = &call.user;
        let (holds, held) = (row.quantity, &row.sku);
        Found::of_order(order, format!("{user} asked for {quantity} {sku}, and {order} holds {holds} {held}"))
    })
}

pub(super) fn ends_readable(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for (order, _) in facts.owed() {
        let reads =
            facts.about.get(order).into_iter().flatten().filter(|call| matches!(call.ask, Ask::Read { .. }));
        let last = reads.filter(|call| call.from_ms >= facts.case.rest_at_ms).max_by_key(|call| call.to_ms);
        let read = last.map_or("never", |call| call.answer.code.as_str());
        let is = facts.rows.get(order).map_or("missing", |row| row.status.as_str());
        if read != is {
            found
                .push(Found::of_order(*order, format!("{order} is {is}, and was read in the end as {read}")));
        }
    }
    found.into_iter().collect()
}

pub(super) fn no_404_after_202(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for (order, given) in facts.owed() {
        let since = given.first().map_or(i64::MAX, |call| call.to_ms);
        for call in facts.about.get(order).into_iter().flatten() {
            if call.answer.status == Some(404) && call.from_ms > since {
                found.push(Found::of_order(
                    *order,
                    format!("{order} had been given, and was then answered with 404"),
                ));
            }
        }
    }
    found.into_iter().collect()
}

pub(super) fn same_click_same_order(facts: &Facts<'_>) -> Look {
    let mut orders: BTreeMap<(&str, &str), Uuid> = BTreeMap::new();
    let mut keys: BTreeMap<Uuid, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for Buy { key, call, .. } in facts.buys().filter(|buy| buy.call.answer.gives_order()) {
        if call.answer.order.is_some_and(|order| facts.lost_with_redis.contains(&order)) {
            continue;
        }
        let Some(order) = call.answer.order else {
            found.push(Found::of_user(&call.user, format!("{} was given an order without an id", call.user)));
            continue;
        };
        let first = *orders.entry((&call.user, key)).or_insert(order);
        if first != order {
            found.push(Found::of_user(
                &call.user,
                format!("{} was given {first} and {order} for {key}", call.user),
            ));
        }
        let first = *keys.entry(order).or_insert(key);
        if first != key {
            found.push(Found::of_order(
                order,
                format!("{} was given {order} for {first} and for {key}", call.user),
            ));
        }
    }
    found.into_iter().collect()
}

/// What a call says about the state of an order, unless a loss may have undone it.
fn shown<'a>(facts: &Facts<'_>, call: &'a Call) -> Option<&'a str> {
    let code = call.answer.code.as_str();
    if matches!(code, "cancelled" | "expired") && facts.may_be_undone(call) {
        return None;
    }
    match call.ask {
        Ask::Read { .. } | Ask::Cancel { .. } => call.answer.is_success().then_some(code),
        Ask::Pay { .. } => (code == "applied").then_some("paid"),
        // An event shows what the order has been, and not what it is.
        Ask::Buy { .. } | Ask::Follow { .. } => None,
    }
}

pub(super) fn no_way_back(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for (order, calls) in &facts.about {
        let mut shown: Vec<(i64, i64, &str)> =
            calls.iter().filter_map(|call| Some((call.from_ms, call.to_ms, shown(facts, call)?))).collect();
        shown.sort_unstable();
        let row = facts
            .rows
            .get(order)
            .map(|row| (facts.case.rest_at_ms, facts.case.rest_at_ms, row.status.as_str()));
        shown.extend(row);
        for (nth, (from_ms, _, later)) in shown.iter().enumerate() {
            let earlier =
                shown[..nth].iter().find(|(_, to_ms, earlier)| to_ms < from_ms && !leads_to(earlier, later));
            if let Some((_, _, earlier)) = earlier {
                found.push(Found::of_order(*order, format!("{order} was {earlier}, and later {later}")));
            }
        }
    }
    found.into_iter().collect()
}

pub(super) fn sold_out_is_true(facts: &Facts<'_>) -> Look {
    let mut free: BTreeMap<(&str, i64), Vec<(i64, i64)>> = BTreeMap::new();
    let mut found = Vec::new();
    for Buy { sku, quantity, call, .. } in facts.buys().filter(|buy| buy.call.answer.code == "sold_out") {
        let free = free.entry((sku, quantity)).or_insert_with(|| certainly_free(facts, sku, quantity));
        if holds_all_of(free, call.from_ms - STALE_MS, call.to_ms) {
            let user = &call.user;
            found.push(Found::of_user(
                user,
                format!("{user} heard sold_out while {quantity} {sku} were free"),
            ));
        }
    }
    found.into_iter().collect()
}

/// How long after a loss the gate may be frozen: it is rebuilt when broker and database both answer.
const REBUILT_WITHIN_MS: i64 = 60_000;

/// How long a front may go by terms that have changed.
const CACHED_MS: i64 = 2_000;

/// How far the clocks of database and crowd, which share a host, may differ.
const SKEW_MS: i64 = 50;

/// Refusals that are true once the operator has sent an act, with the verb of the act and a word of its body.
const BY_ACTS: [(&str, &str, &str); 2] =
    [("sale_closed", "close", ""), ("purchase_limit", "change", "limit")];

/// Words of the bodies that set a rate, and that clear one.
const SETS_RATE: &str = "rate\":\"";
const CLEARS_RATE: &str = "rate\":null";

pub(super) fn refusal_is_true(facts: &Facts<'_>) -> Look {
    let mut orders: HashMap<&str, Vec<Uuid>> = HashMap::new();
    for row in &facts.case.books.orders {
        orders.entry(&row.user).or_default().push(row.id);
    }
    let has = |call: &Call, order: Option<Uuid>| {
        let lost = order.is_some_and(|order| facts.lost_with_redis.contains(&order));
        lost || orders
            .get(call.user.as_str())
            .is_some_and(|of_user| order.is_none_or(|order| of_user.contains(&order)))
    };
    let mut found = Vec::new();
    for call in &facts.case.calls {
        let is_true = match &call.ask {
            Ask::Buy { .. } => is_true_of_a_click(facts, call, has),
            Ask::Cancel { order } => is_true_of_a_cancellation(facts, call, *order),
            // Each event is signed, new, and for an order of this sale.
            Ask::Pay { .. } => !is_refused(call),
            Ask::Read { .. } | Ask::Follow { .. } => true,
        };
        if !is_true {
            let code = &call.answer.code;
            found.push(Found::of_user(&call.user, format!("{} heard {code}, which is not so", call.user)));
        }
    }
    found.into_iter().collect()
}

fn is_refused(call: &Call) -> bool {
    call.answer.status.is_some_and(|status| (400..500).contains(&status))
}

fn is_true_of_a_click(facts: &Facts<'_>, call: &Call, has: impl Fn(&Call, Option<Uuid>) -> bool) -> bool {
    match call.answer.code.as_str() {
        // Whether it is so is for another rule.
        "sold_out" => true,
        "already_ordered" => has(call, call.answer.order),
        "purchase_limit" if facts.case.sale.limit > 1 => has(call, None),
        // The gate is frozen while it is rebuilt.
        "sale_paused" => {
            facts.is_paused(call.from_ms - STALE_MS, call.to_ms)
                || facts.is_in_loss(call.to_ms, REBUILT_WITHIN_MS)
        }
        "rate_limited" => is_rated(facts, call),
        code => {
            match BY_ACTS.iter().find(|(refusal, ..)| *refusal == code) {
                Some((_, verb, word)) => facts.case.acts.iter().any(|act| {
                    act.act.starts_with(verb) && act.act.contains(word) && act.from_ms <= call.to_ms
                }),
                // A click is well-formed, of a buyer with a token, for a sale that is open.
                None => !is_refused(call),
            }
        }
    }
}

/// Whether the sale had a rate at some time of the call, or may have had.
fn is_rated(facts: &Facts<'_>, call: &Call) -> bool {
    let acts = || facts.case.acts.iter().filter(|act| act.act.starts_with("change"));
    acts().filter(|act| act.act.contains(SETS_RATE) && act.from_ms <= call.to_ms).any(|set| {
        let cleared = |act: &&OperatorAct| {
            act.act.contains(CLEARS_RATE) && act.answer == "done" && act.from_ms >= set.to_ms
        };
        !acts().filter(cleared).any(|act| act.to_ms + CACHED_MS < call.from_ms)
    })
}

/// An order that has a row can be cancelled until it is paid or has ended otherwise.
fn is_true_of_a_cancellation(facts: &Facts<'_>, call: &Call, order: Uuid) -> bool {
    match call.answer.code.as_str() {
        "invalid_transition" => {
            let failed = facts.rows.get(&order).is_some_and(|row| row.status == "failed");
            let mut changes = facts.changes.get(&order).into_iter().flatten();
            failed || changes.any(|change| change.to != "confirmed" && change.at_ms - SKEW_MS <= call.to_ms)
        }
        // Other rules judge whether it is so: of an order that was given, it never is.
        "order_not_found" => true,
        _ => !is_refused(call),
    }
}
