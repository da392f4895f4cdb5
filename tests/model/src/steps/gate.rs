//! The scripts of the gate: each is one step, because Redis runs one script at a time.

use crate::config::Config;
use crate::mistakes::Mistake;
use crate::state::{Entry, Number, Order, Place, Record, Relay, Row, Selling, State};

/// `lua/gate/admit.lua`, from the check of the caller's number to the outbox entry. A refusal changes nothing, so it is
/// no step, except where it freezes the sale.
pub fn click(state: &mut State, config: &Config, user: u8, key: u8) -> bool {
    if state.budget.clicks == 0 || !state.compared || state.gate.selling == Selling::Missing {
        return false;
    }
    let used = |user: u8, key: u8| state.accepted().any(|(_, order)| order.user == user && order.key >= key);
    if user > 0 && !used(user - 1, 0) || key > 0 && !used(user, key - 1) {
        // Users and keys are alike: the lowest ones come first.
        return false;
    }
    state.budget.clicks -= 1;
    if freeze_if_behind(state, config, state.known) {
        return true;
    }
    if state.gate.selling != Selling::Open {
        return false;
    }
    for (id, order) in state.accepted() {
        let record = state.gate.records[id];
        // A repeat gets its order, whatever became of it; a user at the limit gets `already_ordered`.
        let has_one = record == Record::Held && config.mistake != Mistake::NoLimit;
        if order.user == user && (has_one || record != Record::None && order.key == key) {
            return false;
        }
    }
    let Some(id) = state.orders.iter().position(Option::is_none) else { return false };
    if state.gate.left <= 0 && config.mistake != Mistake::NoStock {
        return false;
    }
    let number = next_number(state);
    state.orders[id] = Some(Order { user, key, number });
    state.gate.left -= 1;
    state.gate.records[id] = Record::Held;
    if config.mistake != Mistake::AdmitWithoutOutbox {
        state.gate.outbox[id] = Entry::Outbox;
    }
    state.known = state.known.max(number);
    state.relay[id] = Relay::Publish;
    if config.has_clock() {
        state.news[id] = Some(0);
    }
    true
}

/// `lua/include/freeze_if_behind.lua`. Returns whether the gate was behind its caller and was not frozen before.
pub fn freeze_if_behind(state: &mut State, config: &Config, known: Number) -> bool {
    let behind = state.gate.number < known && state.gate.selling != Selling::Frozen;
    if behind && config.mistake != Mistake::NoFreeze {
        state.gate.selling = Selling::Frozen;
        return true;
    }
    false
}

/// Takes the next number of the sale.
pub fn next_number(state: &mut State) -> Number {
    state.gate.number.1 += 1;
    state.gate.number
}

/// What the gate learns of an order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The row exists, and the user keeps the order.
    Kept,
    /// Refused for stock.
    Dropped,
    /// Refused, because its user has another order.
    Replaced,
    /// Its unit goes back.
    Ended,
}

impl Outcome {
    /// `settlement_of` in `src/settlement/mod.rs`.
    pub fn of(row: Row) -> Self {
        match row {
            Row::Replaced => Self::Replaced,
            Row::Refused => Self::Dropped,
            _ => Self::Kept,
        }
    }
}

/// The reply of the settle script.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Redis was not compared since it started, so the script may not run yet.
    NotCompared,
    /// The gate does not have the sale.
    NotLoaded,
    /// It is frozen.
    Frozen,
    /// Done, at this number.
    Done(Number),
}

/// `lua/gate/settle.lua`, for one order. `known` and `place` are what the caller knows.
pub fn settle(
    state: &mut State,
    config: &Config,
    order: u8,
    outcome: Outcome,
    knows: (Number, Place),
) -> Settled {
    let id = usize::from(order);
    if !state.compared {
        return Settled::NotCompared;
    }
    if state.gate.selling == Selling::Missing {
        return Settled::NotLoaded;
    }
    freeze_if_behind(state, config, knows.0);
    state.gate.witness = state.gate.witness.max(knows.1);
    if state.gate.selling == Selling::Frozen {
        return Settled::Frozen;
    }
    match outcome {
        Outcome::Kept => {}
        Outcome::Dropped => drop_record(state, id),
        Outcome::Replaced => replace(state, id),
        Outcome::Ended => finish(state, config, id),
    }
    state.gate.outbox[id] = Entry::None;
    Settled::Done(state.gate.number)
}

fn finish(state: &mut State, config: &Config, id: usize) {
    let twice = config.mistake == Mistake::ReturnTwice && state.gate.records[id] == Record::Ended;
    if state.gate.records[id] == Record::Held || twice {
        state.gate.records[id] = Record::Ended;
        state.gate.left += 1;
        state.memory.returned[id] += 1;
        next_number(state);
    }
}

fn drop_record(state: &mut State, id: usize) {
    if state.gate.records[id] != Record::None {
        if state.gate.left < 0 && state.gate.records[id] == Record::Held {
            state.gate.left += 1;
        }
        state.gate.records[id] = Record::None;
        next_number(state);
    }
}

fn replace(state: &mut State, id: usize) {
    let Some(user) = state.orders[id].map(|order| order.user) else { return };
    if state.gate.records[id] == Record::None {
        return;
    }
    let winner = state.live_of(user).find(|other| *other != id);
    if let Some(winner) = winner.filter(|winner| state.gate.records[*winner] == Record::None) {
        state.gate.records[winner] = Record::Held;
        state.gate.left -= 1;
    }
    if state.gate.records[id] == Record::Held {
        state.gate.left += 1;
    }
    state.gate.records[id] = Record::None;
    next_number(state);
}

/// `lua/gate/mark.lua` with `ended`: readers go to the row.
pub fn mark_ended(state: &mut State, id: usize) {
    if state.gate.outbox[id] != Entry::None {
        state.gate.outbox[id] = Entry::Ended;
    }
}

/// `src/settlement/recorded.rs`: all entries of orders with a row.
pub fn mark_recorded(state: &mut State) {
    for id in 0..state.orders.len() {
        if state.db.rows[id] != Row::None {
            mark_ended(state, id);
        }
    }
}

/// `lua/gate/adopt.lua`.
pub fn adopt(state: &mut State, config: &Config, id: usize, known: Number) -> Option<Number> {
    freeze_if_behind(state, config, known);
    if !state.compared || matches!(state.gate.selling, Selling::Missing | Selling::Frozen) {
        return None;
    }
    if state.gate.records[id] != Record::Held {
        state.gate.records[id] = Record::Held;
        state.gate.left -= 1;
        next_number(state);
    }
    Some(state.gate.number)
}
