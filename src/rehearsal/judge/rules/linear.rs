//! Linearizability of each buyer's history: is there one order of events, in which each call takes effect at some moment
//! between its beginning and its answer, that explains all answers?
//!
//! The method is that of Wing and Gong with Lowe's memory of configurations that failed. A buyer has a few orders and a
//! few calls, so the search is short. A call without an answer may take effect at any later time, or never. Rows move by
//! themselves from `accepted` to `confirmed` and on to `expired`; how early, is the matter of other rules.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use uuid::Uuid;

use crate::rehearsal::judge::call::{Ask, Call};
use crate::rehearsal::judge::facts::{Facts, is_live};
use crate::rehearsal::judge::rule::{Found, Look};

/// Calls of one buyer that are judged together.
const MOST: usize = 128;

pub(super) fn linearizable(facts: &Facts<'_>) -> Look {
    let mut found = Vec::new();
    for (user, calls) in &facts.of_user {
        let steps = steps_of(facts, user, calls);
        if steps.len() > MOST {
            found.push(Found::of_user(user, format!("{user} made {} calls, too many to judge", steps.len())));
        } else if !(Search { steps: &steps, terms: Terms::of(facts), failed: HashSet::new() }).explains() {
            found.push(Found::of_user(user, format!("no order of events explains what {user} heard")));
        }
    }
    found.into_iter().collect()
}

/// What a call did if it took effect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Effect<'a> {
    /// Took an order of so many units with this key.
    Took {
        order: Uuid,
        key: &'a str,
        units: i64,
    },
    /// Found the order that this key had taken.
    Repeated {
        order: Uuid,
        key: &'a str,
    },
    /// Found another order.
    AlreadyOrdered {
        order: Option<Uuid>,
        key: &'a str,
    },
    /// Found that the buyer would have more units than they may have.
    TooMany {
        key: &'a str,
        units: i64,
    },
    /// Took nothing with this key.
    SoldOut {
        key: &'a str,
    },
    /// Found an order in this state.
    Shown {
        order: Uuid,
        state: &'a str,
    },
    Cancelled {
        order: Uuid,
    },
    /// Found that a replay had ended an order.
    EndedInReplay {
        order: Uuid,
    },
    /// Found that an order has ended or is paid.
    NotCancelled {
        order: Uuid,
    },
    Paid {
        order: Uuid,
    },
    /// Found that an order has ended or is paid.
    PaidLate {
        order: Uuid,
    },
    /// Found that an order has ended, and took another one for the money.
    Retaken {
        order: Uuid,
        new_order: Uuid,
    },
}

struct Step<'a> {
    effect: Effect<'a>,
    from_ms: i64,
    /// `None` if it need not take effect at all.
    to_ms: Option<i64>,
}

/// The calls with their effects, without those that change and show nothing.
fn steps_of<'a>(facts: &Facts<'a>, user: &'a str, calls: &[&'a Call]) -> Vec<Step<'a>> {
    let orders = orders_of_keys(facts, user, calls);
    let mut steps = Vec::new();
    let mut doubtful: BTreeMap<Effect<'a>, i64> = BTreeMap::new();
    let is_lost = |order: Option<Uuid>| order.is_some_and(|order| facts.lost_with_redis.contains(&order));
    for call in calls {
        if is_lost(call.ask.order()) || is_lost(call.answer.order) {
            continue;
        }
        // What may have been undone may have happened, and need not.
        let undone =
            matches!(call.answer.code.as_str(), "cancelled" | "expired") && facts.may_be_undone(call);
        if let Some(effect) = answered(call).filter(|_| !undone) {
            let effect = match effect {
                Effect::Shown { order, state: "cancelled" } if facts.may_have_ended_in_replay(order) => {
                    Effect::EndedInReplay { order }
                }
                effect => effect,
            };
            steps.push(Step { effect, from_ms: call.from_ms, to_ms: Some(call.to_ms) });
            continue;
        }
        let perhaps = match &call.ask {
            Ask::Buy { key, quantity, .. } => {
                orders.get(key.as_str()).map(|order| Effect::Took { order: *order, key, units: *quantity })
            }
            Ask::Cancel { order } => Some(Effect::Cancelled { order: *order }),
            Ask::Pay { order, .. } => Some(Effect::Paid { order: *order }),
            Ask::Read { .. } | Ask::Follow { .. } => None,
        };
        let is_doubtful = undone || call.answer.is_unknown() || call.answer.code == "pending";
        if let Some(effect) = perhaps.filter(|_| is_doubtful) {
            // A second one would change nothing that the first did not.
            let first = doubtful.entry(effect).or_insert(call.from_ms);
            *first = call.from_ms.min(*first);
        }
    }
    steps.extend(doubtful.into_iter().map(|(effect, from_ms)| Step { effect, from_ms, to_ms: None }));
    steps
}

/// The order that each key took, by any answer; or a row that no answer explains, for a key that got none.
fn orders_of_keys<'a>(facts: &Facts<'a>, user: &str, calls: &[&'a Call]) -> BTreeMap<&'a str, Uuid> {
    let mut orders = BTreeMap::new();
    for call in calls {
        if let (Ask::Buy { key, .. }, Some(order), true) =
            (&call.ask, call.answer.order, call.answer.gives_order())
        {
            orders.entry(key.as_str()).or_insert(order);
        }
    }
    let known: BTreeSet<Uuid> = orders.values().copied().collect();
    let unknown = facts.case.books.orders.iter().find(|row| row.user == user && !known.contains(&row.id));
    let bare = calls.iter().find_map(|call| match &call.ask {
        Ask::Buy { key, .. } if call.answer.is_unknown() && !orders.contains_key(key.as_str()) => {
            Some(key.as_str())
        }
        _ => None,
    });
    if let (Some(row), Some(key)) = (unknown, bare) {
        orders.insert(key, row.id);
    }
    orders
}

/// The effect that an answer reports; `None` if it reports none.
fn answered(call: &Call) -> Option<Effect<'_>> {
    let (answer, code) = (&call.answer, call.answer.code.as_str());
    match &call.ask {
        Ask::Buy { key, quantity: units, .. } => match (code, answer.order) {
            ("accepted" | "confirmed", Some(order)) => Some(Effect::Took { order, key, units: *units }),
            ("repeat", Some(order)) => Some(Effect::Repeated { order, key }),
            ("already_ordered", order) => Some(Effect::AlreadyOrdered { order, key }),
            ("purchase_limit", _) => Some(Effect::TooMany { key, units: *units }),
            ("sold_out", _) => Some(Effect::SoldOut { key }),
            _ => None,
        },
        Ask::Read { order } => answer.is_success().then_some(Effect::Shown { order: *order, state: code }),
        // An event shows what the order has been, and not what it is.
        Ask::Follow { .. } => None,
        Ask::Cancel { order } => match code {
            "cancelled" => Some(Effect::Cancelled { order: *order }),
            "invalid_transition" => Some(Effect::NotCancelled { order: *order }),
            _ => None,
        },
        Ask::Pay { order, .. } => match (code, answer.new_order) {
            ("applied", _) => Some(Effect::Paid { order: *order }),
            ("late", _) => Some(Effect::PaidLate { order: *order }),
            ("retaken", Some(new_order)) => Some(Effect::Retaken { order: *order, new_order }),
            _ => None,
        },
    }
}

/// An order of a buyer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held<'a> {
    order: Uuid,
    key: &'a str,
    status: &'a str,
    units: i64,
}

/// The orders of a buyer.
type State<'a> = Vec<Held<'a>>;

/// The terms of the sale.
#[derive(Clone, Copy)]
struct Terms {
    /// Units per buyer.
    limit: i64,
    /// Whether only live orders count towards it.
    rebuy: bool,
}

impl Terms {
    fn of(facts: &Facts<'_>) -> Self {
        Self { limit: facts.case.sale.limit, rebuy: facts.case.sale.rebuy }
    }

    /// The fewest units that these orders count as. A row may have been written, and have expired, without anybody asking.
    fn at_least(self, orders: &State<'_>) -> i64 {
        orders.iter().filter(|held| !(self.rebuy && may_end(held.status))).map(|held| held.units).sum()
    }
}

/// The most units that these orders count as: an ended one counts until the gate has its units back.
fn at_most(orders: &State<'_>) -> i64 {
    orders.iter().map(|held| held.units).sum()
}

/// Whether an order in this state may have ended since.
fn may_end(status: &str) -> bool {
    matches!(status, "accepted" | "confirmed") || !is_live(status)
}

struct Search<'s, 'a> {
    steps: &'s [Step<'a>],
    terms: Terms,
    /// Configurations from which no order of events was found.
    failed: HashSet<(u128, State<'a>)>,
}

impl<'a> Search<'_, 'a> {
    fn explains(mut self) -> bool {
        self.go(0, &Vec::new())
    }

    /// Whether the steps that are not in `done` can follow on `state`.
    fn go(&mut self, done: u128, state: &State<'a>) -> bool {
        let open = |nth: usize| done & (1 << nth) == 0;
        let left = self.steps.iter().enumerate().filter(|(nth, _)| open(*nth));
        let Some(first_answer) = left.filter_map(|(_, step)| step.to_ms).min() else { return true };
        if self.failed.contains(&(done, state.clone())) {
            return false;
        }
        for nth in 0..self.steps.len() {
            let step = &self.steps[nth];
            if !open(nth) || step.from_ms > first_answer {
                continue;
            }
            if let Some(next) = after(&step.effect, state, self.terms)
                && self.go(done | (1 << nth), &next)
            {
                return true;
            }
        }
        self.failed.insert((done, state.clone()));
        false
    }
}

/// The state after an effect; `None` if it is impossible in this state.
fn after<'a>(effect: &Effect<'a>, state: &State<'a>, terms: Terms) -> Option<State<'a>> {
    let mut next = state.clone();
    let known = |key: &str| state.iter().any(|held| held.key == key);
    match *effect {
        Effect::Took { order, key, units } => {
            let is_given = state.iter().any(|held| held.order == order);
            if known(key) || is_given || terms.at_least(state) + units > terms.limit {
                return None;
            }
            next.push(Held { order, key, status: "accepted", units });
        }
        Effect::Repeated { order, key } => {
            state.iter().find(|held| held.order == order && held.key == key)?;
        }
        Effect::AlreadyOrdered { order, key } => {
            state.iter().find(|held| held.key != key && order.is_none_or(|order| order == held.order))?;
        }
        Effect::TooMany { key, units } => {
            return (!known(key) && at_most(state) + units > terms.limit).then_some(next);
        }
        Effect::SoldOut { key } => return (!known(key)).then_some(next),
        Effect::Shown { order, state } => {
            let status = status_of(&mut next, order)?;
            *status = moved(status, state)?;
        }
        Effect::Cancelled { order } => {
            let status = status_of(&mut next, order)?;
            matches!(*status, "accepted" | "confirmed" | "cancelled").then(|| *status = "cancelled")?;
        }
        Effect::EndedInReplay { order } => *status_of(&mut next, order)? = "cancelled",
        Effect::NotCancelled { order } => {
            let status = status_of(&mut next, order)?;
            (*status != "cancelled").then(|| expire(status))?;
        }
        Effect::Paid { order } => {
            let status = status_of(&mut next, order)?;
            matches!(*status, "accepted" | "confirmed" | "paid").then(|| *status = "paid")?;
        }
        Effect::PaidLate { order } => expire(status_of(&mut next, order)?),
        Effect::Retaken { order, new_order } => {
            let units = next.iter().find(|held| held.order == order)?.units;
            let status = status_of(&mut next, order)?;
            may_end(status).then(|| expire(status))?;
            // The provider asks again until it has an answer, and hears the same each time.
            if !next.iter().any(|held| held.order == new_order) {
                next.push(Held { order: new_order, key: "", status: "paid", units });
            }
        }
    }
    Some(next)
}

/// Ends an order that waits for its payment; any other stays.
fn expire(status: &mut &str) {
    if matches!(*status, "accepted" | "confirmed") {
        *status = "expired";
    }
}

fn status_of<'s, 'a>(state: &'s mut State<'a>, order: Uuid) -> Option<&'s mut &'a str> {
    state.iter_mut().find(|held| held.order == order).map(|held| &mut held.status)
}

/// The state that is shown, if a row can have moved there by itself.
fn moved<'a>(from: &str, to: &'a str) -> Option<&'a str> {
    let by_itself = [("accepted", "confirmed"), ("accepted", "expired"), ("confirmed", "expired")];
    (from == to || by_itself.contains(&(from, to))).then_some(to)
}
