//! The story of a contradiction: what its buyer asked and heard, what the rows say, and what was down meanwhile.

use std::fmt::Write as _;

use super::call::{Ask, Call};
use super::facts::Facts;
use super::rule::Finding;

/// One line for each event, in the order of time, in seconds after the first call; `None` if the finding concerns
/// neither a buyer nor an order.
pub(super) fn of(facts: &Facts<'_>, finding: &Finding) -> Option<String> {
    let user = match (&finding.user, finding.order) {
        (Some(user), _) => user.as_str(),
        (None, Some(order)) => facts.rows.get(&order).map(|row| row.user.as_str())?,
        (None, None) => return None,
    };
    let start = facts.case.calls.iter().map(|call| call.from_ms).min()?;
    let calls = facts.of_user.get(user).map(Vec::as_slice).unwrap_or_default();
    let mut lines: Vec<(i64, String)> = calls.iter().map(|call| (call.from_ms, asked(call, start))).collect();
    let orders = facts.case.books.orders.iter().filter(|row| row.user == user);
    for row in orders {
        lines.push((row.accepted_at_ms, format!("row         {} accepted by the gate", row.id)));
        for change in facts.changes.get(&row.id).into_iter().flatten() {
            lines.push((change.at_ms, format!("row         {} -> {}", change.from, change.to)));
        }
        lines.push((
            row.recorded_at_ms,
            format!("row         {} written; it is {} in the end", row.id, row.status),
        ));
    }
    for webhook in facts.case.webhooks.iter().flatten() {
        if facts.rows.get(&webhook.order).is_some_and(|row| row.user == user) {
            lines.push((webhook.at_ms, format!("webhook     {} is {}", webhook.order, webhook.state)));
        }
    }
    let (first, last) = (lines.iter().map(|line| line.0).min()?, lines.iter().map(|line| line.0).max()?);
    for outage in facts.case.outages.iter().filter(|outage| outage.missed.is_none()) {
        if outage.to_ms + 5_000 >= first && outage.from_ms <= last {
            let lasted = (outage.to_ms - outage.from_ms) as f64 / 1000.0;
            lines.push((outage.from_ms, format!("fault       {}, for {lasted:.1} s", outage.fault)));
        }
    }
    lines.sort();
    let mut story = format!("  the story of {user} ({})\n", finding.rule);
    for (at, line) in lines {
        let _ = writeln!(story, "  {:>9.3} s {line}", (at - start) as f64 / 1000.0);
    }
    Some(story)
}

fn asked(call: &Call, start: i64) -> String {
    let asked = match &call.ask {
        Ask::Buy { key, sku, quantity } => format!("buys        {quantity} {sku} with key {key}"),
        Ask::Read { order } => format!("reads       {order}"),
        Ask::Follow { order } => format!("follows     {order}"),
        Ask::Cancel { order } => format!("cancels     {order}"),
        Ask::Pay { order, .. } => format!("pays        {order}"),
    };
    let mut heard = call.answer.code.clone();
    for order in [call.answer.order, call.answer.new_order].into_iter().flatten() {
        let _ = write!(heard, " {order}");
    }
    format!("{asked}: at {:.3} s {heard}", (call.to_ms - start) as f64 / 1000.0)
}
