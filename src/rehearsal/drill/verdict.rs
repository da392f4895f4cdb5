//! The verdict: compares the answers that buyers got with gate and database.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;

use serde::Serialize;

use super::click::ClickResult;
use super::contradictions;
use super::final_books::FinalBooks;
use super::follow_up::Outcome;
use super::operator::Act;
use super::plan::Plan;
use crate::domain::{OrderId, OrderStatus, UserId};
use crate::rehearsal::judge::some_of;

/// The result of comparing the answers with the books.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// The stock at the end.
    pub units: i64,
    /// Units of live orders in the database.
    pub sold: i64,
    /// Units sold beyond the stock.
    pub oversold: i64,
    /// Users with more units than they may have.
    pub duplicate: u64,
    /// Orders that some answer to a buyer reported as taken.
    pub promised: u64,
    /// Promised orders that have no row.
    pub lost: u64,
    /// Promised orders that the database refused. Each has a row with the reason.
    pub failed: u64,
    /// Units that are in none of the books.
    pub leaked: i64,
    /// Units that were left although enough buyers wanted them.
    pub unsold: i64,
    /// Orders that did not end in time.
    pub unfinished: u64,
    /// Live orders whose buyer got no answer. Not an error: repeating the click would return the order.
    pub unheard: u64,
    /// How often each answer was given to a payment or cancellation; empty if buyers send neither.
    #[serde(rename = "fates")]
    pub follow_ups: BTreeMap<String, u64>,
    /// Orders by their final state; empty if buyers neither pay nor cancel.
    pub ended: BTreeMap<String, u64>,
    /// Violations of the contract, one sentence each.
    pub contradictions: Vec<String>,
}

impl Verdict {
    pub(super) fn reach(
        results: &[ClickResult],
        outcomes: &[Outcome],
        acts: &[Act],
        books: &FinalBooks,
        plan: &Plan,
    ) -> Self {
        let promised: BTreeSet<OrderId> =
            results.iter().filter(|result| result.has_order()).filter_map(|result| result.order).collect();
        let heard: HashSet<OrderId> = results.iter().filter_map(|result| result.order).collect();
        let sold: i64 = books.live_rows().map(|row| row.quantity).sum();
        let mut contradictions = contradictions::of_clicks(results, books, plan);
        if plan.follow_up.is_some() {
            contradictions.extend(contradictions::of_follow_ups(books, plan, outcomes));
        }
        let stock = plan.units + acts.iter().map(|act| act.units).sum::<i64>();
        if !some_of(acts.iter().map(|act| act.perhaps)).contains(&(books.stock() - stock)) {
            contradictions.push(format!("the stock should be {stock} units, but is {}", books.stock()));
        }
        // Units may come back after the last buyer has left.
        let wanted = if plan.follow_up.is_some() { 0 } else { wanted(books, plan) };
        let failed = |id: &&OrderId| books.status(**id) == Some(OrderStatus::Failed);
        Self {
            units: books.stock(),
            sold,
            unsold: (wanted - sold).max(0),
            oversold: books.oversold(),
            duplicate: users_above(plan.limit, books),
            promised: promised.len() as u64,
            lost: promised.iter().filter(|id| !books.rows.contains_key(id)).count() as u64,
            failed: promised.iter().filter(failed).count() as u64,
            leaked: books.leaked(),
            unfinished: books.unfinished(),
            unheard: books.live_rows().filter(|row| !heard.contains(&row.order_id)).count() as u64,
            follow_ups: count(outcomes.iter().map(|outcome| outcome.answer.as_str())),
            ended: match plan.follow_up {
                Some(_) => count(books.rows.values().map(|row| row.status.as_str())),
                None => BTreeMap::new(),
            },
            contradictions,
        }
    }

    /// Whether every promise was kept.
    pub fn balances(&self) -> bool {
        self.balances_without(0)
    }

    /// The same if so many orders may be lost. The answers about them contradict the books then.
    pub fn balances_without(&self, lost: u64) -> bool {
        self.oversold == 0
            && self.duplicate == 0
            && self.lost <= lost
            && self.failed == 0
            && self.leaked == 0
            && self.unfinished == 0
            && (lost > 0 || self.contradictions.is_empty())
    }

    /// Whether every unit that was wanted is sold.
    pub fn is_complete(&self) -> bool {
        self.unsold == 0
    }
}

/// Units that buyers asked for and could have. The last of an item may be too few for those who ask for several.
fn wanted(books: &FinalBooks, plan: &Plan) -> i64 {
    let mut asked: BTreeMap<String, i64> = BTreeMap::new();
    for wanted in (0..plan.buyers).map(|buyer| plan.wanted(buyer, 0)) {
        *asked.entry(wanted.sku).or_default() += i64::from(wanted.quantity);
    }
    let items = books.audit.items.iter();
    items
        .map(|item| match asked.get(item.sku.as_str()) {
            Some(units) if *units > item.stock => item.stock - i64::from(plan.limit - 1),
            Some(units) => *units,
            None => 0,
        })
        .sum()
}

/// Users with live orders of more units than they may have.
fn users_above(limit: u32, books: &FinalBooks) -> u64 {
    let mut units_of: BTreeMap<&UserId, i64> = BTreeMap::new();
    for row in books.live_rows() {
        *units_of.entry(&row.user_id).or_default() += row.quantity;
    }
    units_of.values().filter(|units| **units > i64::from(limit)).count() as u64
}

/// How often each word occurs.
pub(super) fn count<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word.to_owned()).or_default() += 1;
    }
    counts
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sold {} of {} · {} oversold · {} duplicate · {} lost",
            self.sold, self.units, self.oversold, self.duplicate, self.lost
        )?;
        for (count, what) in [
            (i64::try_from(self.failed).unwrap_or(i64::MAX), "failed after acceptance"),
            (self.unsold, "unsold though wanted"),
            (self.leaked, "leaked"),
            (i64::try_from(self.unfinished).unwrap_or(i64::MAX), "unfinished"),
            (i64::try_from(self.contradictions.len()).unwrap_or(i64::MAX), "contradictions"),
        ] {
            if count != 0 {
                write!(f, " · {count} {what}")?;
            }
        }
        Ok(())
    }
}
