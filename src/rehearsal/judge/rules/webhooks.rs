//! What a shop hears of its orders by webhooks.

use std::collections::HashMap;

use uuid::Uuid;

use super::streams::path_of;
use crate::rehearsal::judge::case::Webhook;
use crate::rehearsal::judge::facts::Facts;
use crate::rehearsal::judge::rule::{Found, Look};

pub(super) fn webhooks_say_all(facts: &Facts<'_>) -> Look {
    let Some(webhooks) = &facts.case.webhooks else { return Look::default() };
    let mut of_order: HashMap<Uuid, Vec<&Webhook>> = HashMap::new();
    for webhook in webhooks {
        let said = of_order.entry(webhook.order).or_default();
        // A repeat is allowed.
        if !said.iter().any(|before| before.version == webhook.version && before.state == webhook.state) {
            said.push(webhook);
        }
    }
    // After a loss that undid states, other ones follow; then the last one counts.
    let is_excused = facts.case.outages.iter().any(|outage| outage.may_undo.is_some());
    let mut found = Vec::new();
    for order in facts.rows.keys().chain(of_order.keys().filter(|order| !facts.rows.contains_key(order))) {
        let is = path_of(facts, *order);
        // No transaction takes part in an acceptance, so nothing is said of it.
        let is = is.get(1..).unwrap_or_default();
        let said: Vec<&str> =
            of_order.get(order).into_iter().flatten().map(|one| one.state.as_str()).collect();
        let fits = if is_excused { said.last() == is.last() } else { said == is };
        if !fits {
            let (said, is) = (said.join(", "), is.join(", "));
            found.push(Found::of_order(*order, format!("the webhooks of {order} said {said}; it was {is}")));
        }
    }
    found.into_iter().collect()
}
