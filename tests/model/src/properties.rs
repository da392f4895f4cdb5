//! What must hold in every state.

use crate::config::Config;
use crate::model::Protocol;
use crate::state::{Broken, Entry, ORDERS, Record, Relay, Row, Selling, State, USERS, Work};

/// A property with its name.
pub type Named = (&'static str, fn(&Protocol, &State) -> bool);

/// Live rows never exceed the stock.
pub const NO_OVERSELL: &str = "no unit is sold twice";
/// A user's live rows never exceed the limit.
pub const LIMIT: &str = "a user never holds more than the limit";
/// An accepted order is in the outbox, the queue, the log, a process or the database until it has ended.
pub const NOT_LOST: &str = "an accepted order is never lost";
/// No order is refused by the database after it was accepted.
pub const HONOURED: &str = "an accepted order is honoured";
/// A message never becomes a second order.
pub const ONE_ROW: &str = "a copy of a message is never a second order";
/// A buyer never reads an earlier state than before.
pub const FORWARD: &str = "no order goes backwards for a reader";
/// A buyer never hears that an accepted order does not exist.
pub const FOUND: &str = "an accepted order is always found";
/// An answered payment stays with a live order.
pub const PAID: &str = "a paid order never expires";
/// A refusal was true at most 4 ms ago.
pub const FRESH: &str = "a refusal is at most 4 ms old";
/// A refusal agrees with everything that was answered before.
pub const AGREES: &str = "no refusal contradicts an earlier answer";
/// The unit of an ended order goes back once.
pub const ONE_RETURN: &str = "a unit returns to the gate at most once";
/// After a write with a token, none with a lower one takes effect.
pub const FENCED: &str = "no write takes effect under an old token";
/// Two processes act for one user only if a lease ended early.
pub const ALONE: &str = "one process acts for a user at a time";
/// Each live row is held in a gate that sells, and what is left are the others.
pub const GATE_AGREES: &str = "the gate never counts a unit free that a live row holds";
/// When nothing is left to do, every order has ended and the books balance.
pub const ENDS: &str = "when all is done, every accepted order has ended";

/// All of them.
pub fn all() -> Vec<Named> {
    vec![
        (NO_OVERSELL, |_, state| {
            state.db.rows.iter().filter(|row| row.is_live()).count() <= usize::from(state.db.stock)
        }),
        (LIMIT, |_, state| (0..USERS as u8).all(|user| state.live_of(user).count() <= 1)),
        (NOT_LOST, not_lost),
        (HONOURED, honoured),
        (ONE_ROW, one_row),
        (FORWARD, |_, state| holds(state, Broken::WentBackwards)),
        (FOUND, |_, state| holds(state, Broken::NotFound)),
        (PAID, paid),
        (FRESH, |_, state| holds(state, Broken::StaleRefusal)),
        (AGREES, |_, state| holds(state, Broken::Contradiction)),
        (ONE_RETURN, |_, state| state.memory.returned.iter().all(|times| *times <= 1)),
        (FENCED, |_, state| holds(state, Broken::StaleWrite)),
        (ALONE, alone),
        (GATE_AGREES, gate_agrees),
        (ENDS, ends),
    ]
}

/// What is not known to the witnesses at all is the documented limit of the database's place.
fn holds(state: &State, rule: Broken) -> bool {
    state.memory.broken != Some(rule) || state.memory.unwitnessed
}

fn not_lost(_: &Protocol, state: &State) -> bool {
    state.accepted().all(|(id, _)| {
        let worked_on = state.workers.iter().any(|it| it.work != Work::Idle && usize::from(it.order) == id);
        state.gate.outbox[id] != Entry::None
            || state.db.rows[id] != Row::None
            || state.log.accepted[id]
                && (state.has_lost_commits() || state.rebuild.is_some() || !gate_sells(state))
            || state.queue[id] > 0
            || worked_on
            || state.memory.exposed[id]
            || state.memory.unwitnessed
    })
}

fn gate_sells(state: &State) -> bool {
    state.gate.selling == Selling::Open && state.compared
}

/// Unless only Redis held an order when it lost it.
fn has_exposed(state: &State) -> bool {
    state.memory.exposed.contains(&true) || state.memory.unwitnessed
}

fn honoured(_: &Protocol, state: &State) -> bool {
    has_exposed(state) || !state.db.rows.iter().any(|row| matches!(row, Row::Replaced | Row::Refused))
}

fn one_row(_: &Protocol, state: &State) -> bool {
    let copies = |id: usize, other: usize| state.number_of(id) == state.number_of(other) && id != other;
    let rows: Vec<usize> =
        state.accepted().map(|(id, _)| id).filter(|id| state.db.rows[*id] != Row::None).collect();
    has_exposed(state) || !rows.iter().any(|id| rows.iter().any(|other| copies(*id, *other)))
}

fn paid(_: &Protocol, state: &State) -> bool {
    state.memory.unwitnessed
        || (0..ORDERS).all(|id| {
            let kept =
                state.db.rows[id] == Row::Paid || state.has_lost_commits() && !state.db.rows[id].returns();
            !state.memory.paid[id] || kept
        })
}

fn alone(protocol: &Protocol, state: &State) -> bool {
    let Config { budget, .. } = &protocol.config;
    let early = state.budget.stalls < budget.stalls || state.budget.redis_back < budget.redis_back;
    let early = early || state.budget.redis_empty < budget.redis_empty;
    early || (0..USERS as u8).all(|user| state.acting_for(user) <= 1)
}

fn gate_agrees(_: &Protocol, state: &State) -> bool {
    if !gate_sells(state) || state.has_lost_commits() || has_exposed(state) {
        return true;
    }
    let held = state.gate.records.iter().filter(|record| **record == Record::Held).count() as i8;
    let known = (0..ORDERS).all(|id| !state.db.rows[id].is_live() || state.gate.records[id] == Record::Held);
    known && state.gate.left + held <= state.db.stock as i8
}

/// Liveness as safety: within the budgets, every path comes to a state in which the system has nothing to do.
fn ends(protocol: &Protocol, state: &State) -> bool {
    is_busy(state) || protocol.is_good(state) || protocol.has_work(state)
}

/// A cheap look before all steps are tried.
fn is_busy(state: &State) -> bool {
    state.relay.iter().any(|relay| *relay != Relay::None)
        || state.queue.iter().any(|copies| *copies > 0) && state.workers[0].work == Work::Idle
        || state.act.is_some()
        || state.rebuild.is_some()
        || state.compare.is_some()
        || state
            .workers
            .iter()
            .any(|it| matches!(it.work, Work::Leased | Work::Checked | Work::Committed | Work::Acked))
}

impl Protocol {
    /// Whether every accepted order has ended or is confirmed, and the books balance.
    pub fn is_good(&self, state: &State) -> bool {
        let ended = state.accepted().all(|(id, _)| {
            state.memory.exposed[id] || state.db.rows[id] != Row::None && state.gate.outbox[id] == Entry::None
        });
        let owes =
            state.db.returns.contains(&true) || state.gate.outbox.iter().any(|entry| *entry != Entry::None);
        let live = state.db.rows.iter().filter(|row| row.is_live()).count() as i8;
        let balanced = state.gate.left + live == state.db.stock as i8 || has_exposed(state);
        let sells = gate_sells(state) || has_exposed(state) && state.gate.selling == Selling::Paused;
        state.memory.unwitnessed || ended && !owes && balanced && sells && !state.has_lost_commits()
    }
}
