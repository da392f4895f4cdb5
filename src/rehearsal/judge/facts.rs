//! A case, indexed for the rules.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use uuid::Uuid;

use super::books::{ChangeRow, OrderRow, PaymentRow};
use super::call::{Ask, Call};
use super::case::{Case, Intent, Outage};

/// A buyer's request for an order.
#[derive(Clone, Copy)]
pub(super) struct Buy<'a> {
    pub(super) key: &'a str,
    pub(super) sku: &'a str,
    pub(super) quantity: i64,
    pub(super) call: &'a Call,
}

/// A case, indexed for the rules.
pub(super) struct Facts<'a> {
    pub(super) case: &'a Case,
    pub(super) rows: HashMap<Uuid, &'a OrderRow>,
    /// The changes of each order, oldest first.
    pub(super) changes: HashMap<Uuid, Vec<&'a ChangeRow>>,
    pub(super) payments: HashMap<&'a str, &'a PaymentRow>,
    pub(super) intents: HashMap<Uuid, Intent>,
    /// The calls of each buyer, in the order in which they began.
    pub(super) of_user: BTreeMap<&'a str, Vec<&'a Call>>,
    /// The orders that an answer gave to a buyer, each with the calls that did, in the order of their answers.
    pub(super) given: BTreeMap<Uuid, Vec<&'a Call>>,
    /// Orders that were lost as the documents say: Redis alone held them, and lost its data.
    pub(super) lost_with_redis: BTreeSet<Uuid>,
    /// The calls that ask something about an order.
    pub(super) about: HashMap<Uuid, Vec<&'a Call>>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(case: &'a Case) -> Self {
        let mut facts = Self {
            case,
            rows: case.books.orders.iter().map(|row| (row.id, row)).collect(),
            changes: HashMap::new(),
            payments: case.books.payments.iter().map(|row| (row.event.as_str(), row)).collect(),
            intents: case.intents.iter().copied().collect(),
            of_user: BTreeMap::new(),
            given: BTreeMap::new(),
            lost_with_redis: BTreeSet::new(),
            about: HashMap::new(),
        };
        for change in &case.books.changes {
            facts.changes.entry(change.order).or_default().push(change);
        }
        for changes in facts.changes.values_mut() {
            changes.sort_by_key(|change| change.version);
        }
        for call in &case.calls {
            facts.of_user.entry(&call.user).or_default().push(call);
            if let Some(order) = call.ask.order() {
                facts.about.entry(order).or_default().push(call);
            }
            match (&call.ask, call.answer.order) {
                (Ask::Buy { .. }, Some(order)) if call.answer.gives_order() => {
                    facts.given.entry(order).or_default().push(call);
                }
                _ => {}
            }
        }
        for calls in facts.of_user.values_mut() {
            calls.sort_by_key(|call| (call.from_ms, call.to_ms));
        }
        for calls in facts.given.values_mut() {
            calls.sort_by_key(|call| call.to_ms);
        }
        facts.lost_with_redis =
            facts.given.keys().copied().filter(|order| facts.is_lost_with_redis(*order)).collect();
        facts
    }

    /// Whether an order has no row, was never answered as durable, and was accepted shortly before Redis lost its data.
    fn is_lost_with_redis(&self, order: Uuid) -> bool {
        let given = self.given.get(&order).map(Vec::as_slice).unwrap_or_default();
        let about = self.about.get(&order).map(Vec::as_slice).unwrap_or_default();
        let is_durable = given.iter().chain(about).any(|call| call.answer.is_durable);
        let at_ms = given.first().map_or(0, |call| call.to_ms);
        let mut losses = self.case.outages.iter().filter(|outage| outage.loses.as_deref() == Some("redis"));
        let is_near = losses.any(|loss| loss.from_ms - PUBLISHED_WITHIN_MS <= at_ms && at_ms <= loss.to_ms);
        !self.rows.contains_key(&order) && !is_durable && is_near
    }

    /// The orders that buyers were given, without those that were lost as the documents say.
    pub(super) fn owed(&self) -> impl Iterator<Item = (&Uuid, &Vec<&'a Call>)> {
        self.given.iter().filter(|(order, _)| !self.lost_with_redis.contains(order))
    }

    /// Orders that own units.
    pub(super) fn live_rows(&self) -> impl Iterator<Item = &'a OrderRow> {
        self.case.books.orders.iter().filter(|row| is_live(&row.status))
    }

    pub(super) fn buys(&self) -> impl Iterator<Item = Buy<'a>> {
        self.case.calls.iter().filter_map(|call| match &call.ask {
            Ask::Buy { key, sku, quantity } => Some(Buy { key, sku, quantity: *quantity, call }),
            _ => None,
        })
    }

    /// When the order ended by its row; `None` if it has not.
    pub(super) fn ended_at_ms(&self, order: Uuid) -> Option<i64> {
        let last = self.changes.get(&order)?.last()?;
        (!is_live(&last.to)).then_some(last.at_ms)
    }

    /// Every stock of an item that the acts of the operator may have led to.
    pub(super) fn stocks(&self, sku: &str) -> BTreeSet<i64> {
        let acts = || self.case.acts.iter().filter(|act| act.sku == sku);
        let first = self.case.sale.items.get(sku).copied().unwrap_or(0);
        let certain = first + acts().map(|act| act.units).sum::<i64>();
        some_of(acts().map(|act| act.perhaps)).into_iter().map(|units| certain + units).collect()
    }

    /// Whether the operator had paused the sale at some time of this interval, or may have.
    pub(super) fn is_paused(&self, from_ms: i64, to_ms: i64) -> bool {
        let mut paused_at: Option<i64> = None;
        for act in &self.case.acts {
            match paused_at {
                None if act.act.starts_with("pause") => paused_at = Some(act.from_ms),
                Some(paused) if act.act.starts_with("resume") && act.answer == "done" => {
                    if paused <= to_ms && from_ms <= act.to_ms {
                        return true;
                    }
                    paused_at = None;
                }
                _ => {}
            }
        }
        paused_at.is_some_and(|paused| paused <= to_ms)
    }

    /// Whether the end of an order that this call shows may have been undone by a loss. It was committed at some time
    /// of the call: the answer may come after the loss. A cancellation is answered only once the order log has it.
    pub(super) fn may_be_undone(&self, call: &Call) -> bool {
        if matches!(call.ask, Ask::Cancel { .. }) {
            return false;
        }
        let mut undone = self.case.outages.iter().filter_map(|outage| outage.may_undo);
        undone.any(|(from, to)| from <= call.to_ms && call.from_ms <= to)
    }

    /// Whether data was being lost at this time, or until so many milliseconds before it.
    pub(super) fn is_in_loss(&self, at_ms: i64, within_ms: i64) -> bool {
        let mut losses = self.case.outages.iter().filter(|outage| outage.loses.is_some());
        losses.any(|outage| outage.from_ms <= at_ms && at_ms <= outage.to_ms + within_ms)
    }

    /// Whether a replay may have ended the order: after a loss of the database it ends as cancelled what the log has as live
    /// and the gate as ended. So the order had been cancelled or had expired before.
    pub(super) fn may_have_ended_in_replay(&self, order: Uuid) -> bool {
        let can_end =
            self.case.sale.pay_within_ms.is_some() || self.intents.get(&order) == Some(&Intent::Cancels);
        let of_database = |outage: &&Outage| {
            outage.loses.as_deref().is_some_and(|lost| !["redis", "rabbitmq"].contains(&lost))
        };
        let is_near = |at_ms: i64| {
            let mut losses = self.case.outages.iter().filter(of_database);
            losses.any(|loss| loss.from_ms <= at_ms && at_ms <= loss.to_ms + REPLAYED_WITHIN_MS)
        };
        can_end && self.ended_at_ms(order).is_some_and(is_near)
    }

    /// Whether a fault was under way, or the stack recovering from it, at some time of this interval.
    pub(super) fn is_disturbed(&self, from_ms: i64, to_ms: i64) -> bool {
        let hits = |from: i64, to: i64| from <= to_ms && to.saturating_add(RECOVERS_WITHIN_MS) >= from_ms;
        // A fault that missed may have got half way.
        self.case.outages.iter().any(|outage| hits(outage.from_ms, outage.to_ms))
    }
}

/// How long the stack may take until it serves again, once what was killed runs again.
const RECOVERS_WITHIN_MS: i64 = 10_000;

/// How long after a loss a replay may still end orders.
const REPLAYED_WITHIN_MS: i64 = 15_000;

/// How long an order may be in Redis alone while the broker is away or slow.
const PUBLISHED_WITHIN_MS: i64 = 30_000;

/// The sums of any of these numbers: of all, of some, and of none.
pub fn some_of(numbers: impl IntoIterator<Item = i64>) -> BTreeSet<i64> {
    let mut sums = BTreeSet::from([0]);
    for number in numbers {
        let with: Vec<i64> = sums.iter().map(|sum| sum + number).collect();
        sums.extend(with);
    }
    sums
}

/// Whether an order in this state owns its units.
pub(super) fn is_live(status: &str) -> bool {
    matches!(status, "accepted" | "confirmed" | "paid")
}

/// The arrows of an order's life.
pub(super) const ARROWS: [(&str, &str); 7] = [
    ("accepted", "confirmed"),
    ("accepted", "failed"),
    ("accepted", "cancelled"),
    ("confirmed", "paid"),
    ("confirmed", "cancelled"),
    ("confirmed", "expired"),
    ("paid", "refunded"),
];

/// Whether a later look may find `later` after an earlier one found `earlier`.
pub(super) fn leads_to(earlier: &str, later: &str) -> bool {
    earlier == later || ARROWS.iter().any(|(from, to)| *from == earlier && leads_to(to, later))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_lead_forwards_only() {
        assert!(
            leads_to("accepted", "refunded") && leads_to("confirmed", "expired") && leads_to("paid", "paid")
        );
        assert!(
            !leads_to("paid", "confirmed") && !leads_to("expired", "paid") && !leads_to("paid", "expired")
        );
        assert!(!leads_to("cancelled", "expired") && !leads_to("confirmed", "failed"));
    }
}
