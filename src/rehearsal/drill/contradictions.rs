//! Finds answers that contradict each other or the rows. Each contradiction is one sentence for the report.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::click::ClickResult;
use super::final_books::FinalBooks;
use super::follow_up::Outcome;
use super::items::Wanted;
use super::plan::{Clicks, Plan};
use crate::domain::{OrderId, OrderStatus, UserId};
use crate::rehearsal::judge::Intent;

/// The orders that each user was given, by any answer.
type OrdersOf<'a> = BTreeMap<&'a UserId, BTreeSet<OrderId>>;

/// Checks the answers to all clicks against each other and against the books.
pub(super) fn of_clicks(results: &[ClickResult], books: &FinalBooks, plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    let sent = plan.clicks().len();
    if results.len() != sent {
        found.push(format!("{sent} clicks were sent, {} are accounted for", results.len()));
    }
    found.extend(unbalanced(books));
    let orders_of = orders_of_users(results, &mut found);
    if plan.limit == 1 && !plan.follow_up.as_ref().is_some_and(|follow_up| follow_up.rebuy) {
        found.extend(other_orders(&orders_of, books));
    }
    found.extend(sold_after_refusal(results, &orders_of, books));
    found.extend(taken_though_denied(results));
    let clicked: HashSet<&UserId> = results.iter().map(|result| &result.user).collect();
    let strangers = books.rows.values().filter(|row| !clicked.contains(&row.user_id));
    found.extend(strangers.map(|row| format!("{} never clicked, but has an order", row.user_id)));
    let left = |wanted: &Wanted| {
        let item = books.audit.items.iter().find(|item| item.sku.as_str() == wanted.sku);
        item.is_some_and(|item| item.left >= i64::from(wanted.quantity))
    };
    let sold_out_early = results.iter().any(|result| result.code == "sold_out" && left(&result.wanted));
    // If units come back or are added, both can be true, one after the other.
    if sold_out_early && plan.follow_up.is_none() && plan.steering.is_none() {
        found.push("sold_out was answered while units were left".into());
    }
    if plan.clicks == Clicks::TenTimes {
        found.extend(ten_times(results));
    }
    found
}

fn unbalanced(books: &FinalBooks) -> Option<String> {
    (!books.audit.balances())
        .then(|| format!("the audit does not balance: {}", serde_json::json!(books.audit)))
}

fn orders_of_users<'a>(results: &'a [ClickResult], found: &mut Vec<String>) -> OrdersOf<'a> {
    let mut orders_of = OrdersOf::new();
    for result in results {
        match result.order {
            Some(order) if result.has_order() || result.code == "already_ordered" => {
                orders_of.entry(&result.user).or_default().insert(order);
            }
            None if result.has_order() => {
                found.push(format!("{} was given an order without an id", result.user));
            }
            _ => {}
        }
    }
    orders_of
}

/// Users who were given several orders, or an order other than the one in the database.
fn other_orders(orders_of: &OrdersOf<'_>, books: &FinalBooks) -> Vec<String> {
    let mut found: Vec<String> = orders_of
        .iter()
        .filter(|(_, orders)| orders.len() > 1)
        .map(|(user, orders)| format!("{user} was given {} different orders", orders.len()))
        .collect();
    for row in books.live_rows() {
        if orders_of.get(&row.user_id).is_some_and(|orders| !orders.contains(&row.order_id)) {
            found.push(format!("{} was given another order than the one in the database", row.user_id));
        }
    }
    found
}

/// A refusal is final, so a refused user may have a live order only if another answer gave it to them.
fn sold_after_refusal(results: &[ClickResult], orders_of: &OrdersOf<'_>, books: &FinalBooks) -> Vec<String> {
    let refused = |code: &str| matches!(code, "sold_out" | "sale_closed");
    let turned_away: HashSet<&UserId> =
        results.iter().filter(|result| refused(&result.code)).map(|result| &result.user).collect();
    books
        .live_rows()
        .filter(|row| turned_away.contains(&row.user_id) && !orders_of.contains_key(&row.user_id))
        .map(|row| format!("{} was turned away, but has an order", row.user_id))
        .collect()
}

/// Clicks that end as a repeat although the user clicked only once with that key and no attempt had an unknown
/// outcome: every earlier attempt was answered with "nothing was taken", yet one of them made the order.
fn taken_though_denied(results: &[ClickResult]) -> Vec<String> {
    let mut clicks: HashMap<(&UserId, u32), u32> = HashMap::new();
    for result in results {
        *clicks.entry((&result.user, result.key)).or_default() += 1;
    }
    results
        .iter()
        .filter(|result| {
            result.code == "repeat" && !result.unknown && clicks[&(&result.user, result.key)] == 1
        })
        .map(|result| format!("the answer to {} was that nothing was taken, but it was", result.user))
        .collect()
}

/// One key used ten times must give the same order each time. Ten keys must give one order and nine references to it.
fn ten_times(results: &[ClickResult]) -> Vec<String> {
    let mut found = Vec::new();
    let one_key = results.iter().filter(|result| result.user.as_str().ends_with("0"));
    let (mut accepted, mut repeats) = (0, 0);
    for result in one_key {
        match result.code.as_str() {
            "accepted" => accepted += 1,
            "repeat" => repeats += 1,
            code => found.push(format!("one key: answered {code}")),
        }
    }
    if (accepted, repeats) != (1, 9) {
        found.push(format!("one key: {accepted} accepted and {repeats} repeats, instead of 1 and 9"));
    }
    let ten_keys: Vec<&ClickResult> =
        results.iter().filter(|result| result.user.as_str().ends_with("1")).collect();
    let count = |code: &str| ten_keys.iter().filter(|result| result.code == code).count();
    if (count("accepted"), count("already_ordered")) != (1, 9) {
        found.push(format!(
            "ten keys: {} accepted and {} already_ordered, instead of 1 and 9",
            count("accepted"),
            count("already_ordered")
        ));
    }
    if ten_keys.iter().any(|result| result.order.is_none()) {
        found.push("ten keys: an answer without the order's id".into());
    }
    found
}

/// Checks the answers to payments and cancellations against the rows, in both directions.
pub(super) fn of_follow_ups(books: &FinalBooks, plan: &Plan, outcomes: &[Outcome]) -> Vec<String> {
    let mut found: Vec<String> = unbalanced(books).into_iter().collect();
    let mut wanted: HashMap<OrderId, &Outcome> = HashMap::new();
    // Whose payment was never answered while servers failed: it may have taken a unit again, in an order they never heard of.
    let mut unanswered: HashSet<&UserId> = HashSet::new();
    for outcome in outcomes {
        wanted.insert(outcome.order, outcome);
        wanted.extend(outcome.new_order.map(|new_order| (new_order, outcome)));
        if plan.under_fire && !outcome.is_final && outcome.intent.pays() {
            unanswered.extend(books.rows.get(&outcome.order).map(|row| &row.user_id));
        }
        // While servers fail, one who repeats a request for a while may never hear what became of it.
        if (outcome.is_final || !plan.under_fire) && !is_true(outcome, books, plan) {
            found.push(format!(
                "{:?}: answered {:?} for {}, which is {}",
                outcome.intent,
                outcome.answer,
                outcome.order,
                books.status(outcome.order).map_or("missing", OrderStatus::as_str)
            ));
        }
    }
    for (id, row) in &books.rows {
        let paid =
            wanted.get(id).is_some_and(|outcome| outcome.intent.pays()) || unanswered.contains(&row.user_id);
        let unasked = match row.status {
            OrderStatus::Paid => !paid,
            OrderStatus::Confirmed => plan.follow_up.is_some(),
            _ => false,
        };
        if unasked {
            found.push(format!("{id} is {}, though nobody asked for that", row.status));
        }
    }
    found
}

/// Whether the row agrees with the answer.
fn is_true(outcome: &Outcome, books: &FinalBooks, plan: &Plan) -> bool {
    let is = books.status(outcome.order);
    match outcome.answer.as_str() {
        "applied" => is == Some(OrderStatus::Paid),
        "retaken" => {
            let new = outcome.new_order.and_then(|id| books.status(id));
            is.is_some_and(|is| !is.is_live()) && new == Some(OrderStatus::Paid)
        }
        // The order had ended before; or a unit was retaken, and the new order has ended as well.
        "late" => is.is_some_and(|is| !is.is_live()),
        "cancelled" => is == Some(OrderStatus::Cancelled),
        "invalid_transition" => outcome.intent == Intent::Cancels && is == Some(OrderStatus::Expired),
        // A replay after a loss may have ended it instead; the judge knows when there was one.
        "nothing" => {
            is == Some(OrderStatus::Expired) || plan.under_fire && is == Some(OrderStatus::Cancelled)
        }
        _ => false,
    }
}
