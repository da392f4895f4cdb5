//! Floors: how well buyers have to be served although things fail.

use std::collections::{BTreeMap, BTreeSet};

use crate::rehearsal::judge::call::Ask;
use crate::rehearsal::judge::case::Intent;
use crate::rehearsal::judge::facts::Facts;
use crate::rehearsal::judge::free_units::{certainly_free, holds_all_of};
use crate::rehearsal::judge::rule::{Found, Look};

/// The part of what stock and buyers allow that has to be accepted.
const ACCEPTED: f64 = 0.9;
/// The part of the payments sent in time that has to be applied.
const PAID: f64 = 0.8;
/// A payment counts as sent in time if this was left until the deadline.
const LEFT_TO_PAY_MS: i64 = 2_000;
/// The part of the reads that has to show a state.
const READ: f64 = 0.8;
/// How long the books may take to be at rest after everything was healed and everyone had an answer, besides the time to
/// pay.
const REST_WITHIN_MS: i64 = 15_000;
/// How long nothing may be sold though nothing is down.
const NOTHING_SOLD_MS: i64 = 5_000;
/// How long nothing may be sold whatever is down.
const SELLS_AGAIN_MS: i64 = 45_000;
/// The part of the faults that has to have an effect.
const HIT: f64 = 0.9;

/// A floor for `part` of `all`; nothing is measured if there is nothing to measure.
pub(super) fn at_least(floor: f64, part: usize, all: usize, what: &str) -> Look {
    if all == 0 {
        return Look::default();
    }
    let share = part as f64 / all as f64;
    let short = share < floor;
    let found =
        short.then(|| Found::new(format!("{part} of {all} {what}, {share:.3} instead of {floor} or more")));
    Look { found: found.into_iter().collect(), measured: Some(share) }
}

pub(super) fn sold_enough(facts: &Facts<'_>) -> Look {
    let (mut asked, mut seen): (BTreeMap<&str, i64>, BTreeSet<&str>) = Default::default();
    let (mut accepted, mut served) = (0, BTreeSet::new());
    for buy in facts.buys() {
        if seen.insert(&buy.call.user) {
            *asked.entry(buy.sku).or_default() += buy.quantity;
        }
        // Of a buyer who comes back, the first order: units that were sold twice would hide those that were not.
        if buy.call.answer.gives_order() && served.insert(&buy.call.user) {
            accepted += buy.quantity;
        }
    }
    let stock = |sku: &str| facts.stocks(sku).first().copied().unwrap_or(0);
    let allowed: i64 = asked.into_iter().map(|(sku, units)| units.min(stock(sku))).sum();
    let units = |count: i64| usize::try_from(count).unwrap_or(0);
    at_least(ACCEPTED, units(accepted), units(allowed), "units that stock and buyers allow were accepted")
}

pub(super) fn paid_enough(facts: &Facts<'_>) -> Look {
    let Some(pay_within) = facts.case.sale.pay_within_ms else { return Look::default() };
    let (mut sent, mut applied) = (0, 0);
    for (order, calls) in &facts.about {
        let mut pays = calls.iter().filter(|call| matches!(call.ask, Ask::Pay { .. })).peekable();
        let Some(first) = pays.peek().map(|call| call.from_ms) else { continue };
        // Without a row yet, the time to pay has not begun.
        let deadline = facts.rows.get(order).map_or(i64::MAX, |row| row.recorded_at_ms + pay_within);
        if facts.intents.get(order) != Some(&Intent::Pays) || first > deadline - LEFT_TO_PAY_MS {
            continue;
        }
        sent += 1;
        applied += usize::from(pays.any(|call| matches!(call.answer.code.as_str(), "applied" | "retaken")));
    }
    at_least(PAID, applied, sent, "payments sent in time were applied")
}

pub(super) fn read_enough(facts: &Facts<'_>) -> Look {
    let reads: Vec<_> = facts.case.calls.iter().filter(|call| matches!(call.ask, Ask::Read { .. })).collect();
    let shown = reads.iter().filter(|call| call.answer.is_success()).count();
    at_least(READ, shown, reads.len(), "reads showed a state")
}

pub(super) fn rest_soon(facts: &Facts<'_>) -> Look {
    let acts =
        facts.case.calls.iter().filter(|call| !matches!(call.ask, Ask::Read { .. } | Ask::Follow { .. }));
    let answered = acts.map(|call| call.to_ms).max().unwrap_or(0);
    let quiet = facts.case.healed_at_ms.max(answered);
    let took = (facts.case.rest_at_ms - quiet).max(0);
    let limit = REST_WITHIN_MS + facts.case.sale.pay_within_ms.unwrap_or(0);
    let found = (took > limit).then(|| {
        Found::new(format!(
            "the books were at rest {took} ms after everything was healed, instead of {limit} or less"
        ))
    });
    Look { found: found.into_iter().collect(), measured: Some(took as f64 / 1000.0) }
}

pub(super) fn sells_on(facts: &Facts<'_>) -> Look {
    stands_still_at_most(facts, NOTHING_SOLD_MS, true, "though nothing was down, a unit was free")
}

pub(super) fn sells_again(facts: &Facts<'_>) -> Look {
    stands_still_at_most(facts, SELLS_AGAIN_MS, false, "though a unit was free")
}

/// Answers to buyers who would get no order anyway, which other rules judge.
const SERVED: [&str; 4] = ["repeat", "already_ordered", "purchase_limit", "sold_out"];

/// A floor for the time in which buyers come and none gets an order, although a unit is free; with `calm`, although
/// nothing is down either.
fn stands_still_at_most(facts: &Facts<'_>, limit_ms: i64, calm: bool, although: &str) -> Look {
    let of_items = facts.case.sale.items.keys().filter_map(|sku| {
        let clicks = clicks_on(facts, sku);
        Some((longest_still(facts, sku, &clicks, calm)?, clicks))
    });
    // Where there was no such time, nothing was measured.
    let Some(((from, to), clicks)) = of_items.max_by_key(|((from, to), _)| to - from) else {
        return Look::default();
    };
    let found = (to - from > limit_ms).then(|| {
        let heard = clicks.iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, code)| *code);
        let (heard, fault) = (counted(heard), last_fault_before(facts, to));
        let ms = to - from;
        Found::new(format!(
            "nothing was sold for {ms} ms, {although}, and buyers came: they heard {heard}; {fault}"
        ))
    });
    Look { found: found.into_iter().collect(), measured: Some((to - from) as f64 / 1000.0) }
}

/// The answers to the clicks on an item that took an order or could have, in the order of time.
fn clicks_on<'a>(facts: &Facts<'a>, sku: &str) -> Vec<(i64, &'a str)> {
    let of_item =
        facts.buys().filter(|buy| buy.sku == sku && !SERVED.contains(&buy.call.answer.code.as_str()));
    let mut clicks: Vec<(i64, &str)> =
        of_item.map(|buy| (buy.call.to_ms, buy.call.answer.code.as_str())).collect();
    clicks.sort_unstable();
    clicks
}

/// The longest time between clicks on an item of which none got an order, although whatever they may ask for is free. `None`
/// if no click came at such a time.
fn longest_still(facts: &Facts<'_>, sku: &str, clicks: &[(i64, &str)], calm: bool) -> Option<(i64, i64)> {
    let free = certainly_free(facts, sku, facts.case.sale.limit);
    let mut longest: Option<(i64, i64)> = None;
    let mut since: Option<i64> = None;
    for (at, code) in clicks {
        let (at, from) = (*at, *since.get_or_insert(*at));
        let excused = facts.is_paused(from, at) || (calm && facts.is_disturbed(from, at));
        if !holds_all_of(&free, from, at) || excused {
            since = None;
            continue;
        }
        let longest = longest.get_or_insert((at, at));
        if matches!(*code, "accepted" | "confirmed") {
            since = None;
        } else if at - from > longest.1 - longest.0 {
            *longest = (from, at);
        }
    }
    longest
}

/// Each code with how often it was heard.
fn counted<'a>(codes: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for code in codes {
        *counts.entry(code).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(code, count)| format!("{code} {count}")).collect();
    counts.join(", ")
}

fn last_fault_before(facts: &Facts<'_>, at_ms: i64) -> String {
    let before = facts.case.outages.iter().filter(|outage| outage.from_ms < at_ms);
    match before.max_by_key(|outage| outage.to_ms) {
        Some(last) if last.to_ms < at_ms => {
            format!("the last fault, {}, had ended {} ms before that ended", last.fault, at_ms - last.to_ms)
        }
        Some(last) => format!("{} was under way when that ended", last.fault),
        None => "no fault had come before".into(),
    }
}

pub(super) fn faults_hit(facts: &Facts<'_>) -> Look {
    let faults = &facts.case.outages;
    let hit = faults.iter().filter(|outage| outage.missed.is_none()).count();
    at_least(HIT, hit, faults.len(), "faults had an effect")
}
