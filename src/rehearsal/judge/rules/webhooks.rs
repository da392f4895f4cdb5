//! What a shop hears of its orders and of its sale by webhooks.

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

/// The acts that move a sale to another state, and what is said of them.
const STATES: [(&str, &str); 4] =
    [("open", "opened"), ("pause", "paused"), ("resume", "resumed"), ("close", "closed")];

pub(super) fn webhooks_say_how_it_ended(facts: &Facts<'_>) -> Look {
    let Some(said) = &facts.case.sale_webhooks else { return Look::default() };
    let mut found = Vec::new();
    let of_act = |act: &String| STATES.iter().find(|(kind, _)| kind == act).map(|(_, state)| *state);
    let last = facts.case.books.acts.iter().rev().find_map(of_act);
    let heard = said.iter().rev().find(|state| STATES.iter().any(|(_, of)| of == state));
    if last != heard.map(String::as_str) {
        let (heard, last) = (heard.map_or("nothing", String::as_str), last.unwrap_or("never touched"));
        found.push(Found::new(format!("the last webhook of the sale said {heard}; it was {last}")));
    }
    // A server that loses data may break the books until they are repaired.
    let lost = facts.case.outages.iter().any(|outage| outage.loses.is_some());
    if !lost && said.iter().any(|state| state == "books_broken") {
        found.push(Found::new("a webhook said that the books of the sale are broken".to_owned()));
    }
    found.into_iter().collect()
}
