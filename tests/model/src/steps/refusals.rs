//! The refusal cache, and answers that wait until old readings have expired: `src/gate/refusal_age.rs`. Time is counted
//! in ticks of half the age that a reading may have; the clocks of two processes run alike.

use super::gate::next_number;
use super::witness::advance;
use crate::config::Config;
use crate::mistakes::Mistake;
use crate::state::{Broken, MAX_AGE, Reading, Record, Selling, State, USERS};

/// The database first, because the gate must never have more than it.
pub fn restock(state: &mut State, config: &Config) -> bool {
    if state.budget.restocks == 0 {
        return false;
    }
    state.budget.restocks -= 1;
    state.db.stock += 1;
    state.db.version += 1;
    advance(state, config);
    true
}

/// The gate applies each version once, in order.
pub fn apply_restock(state: &mut State) -> bool {
    let next = state.gate.version + 1 == state.db.version;
    if !next || state.gate.selling != Selling::Open || !state.compared || state.gate.number < state.known {
        return false;
    }
    state.gate.version += 1;
    state.gate.left += 1;
    let number = next_number(state);
    state.restocked = Some((number, 0));
    true
}

/// "Done" is an answer that has to wait, too.
pub fn answer_restock(state: &mut State, config: &Config) -> bool {
    let Some((number, waited)) = state.restocked else { return false };
    if !has_waited(config, waited) {
        return false;
    }
    state.restocked = None;
    state.db.told = state.db.told.max(number);
    state.known = state.known.max(number);
    state.memory.revealed = state.memory.revealed.max(number);
    true
}

fn has_waited(config: &Config, waited: u8) -> bool {
    !config.has_clock() || waited >= MAX_AGE || config.mistake == Mistake::AnswerAtOnce
}

/// The buyer gets 202.
pub fn answer(state: &mut State, config: &Config, order: u8) -> bool {
    let id = usize::from(order);
    let Some(waited) = state.news[id] else { return false };
    if !has_waited(config, waited) {
        return false;
    }
    state.news[id] = None;
    state.memory.revealed = state.memory.revealed.max(state.number_of(id));
    true
}

/// All counters stop where they no longer matter, so that time does not make the space infinite.
pub fn tick(state: &mut State, config: &Config) -> bool {
    if !config.has_clock() {
        return false;
    }
    let before = (state.reading, state.news, state.restocked, state.memory.free_for);
    if let Some(reading) = &mut state.reading {
        reading.age = (reading.age + 1).min(MAX_AGE);
    }
    for waited in state.news.iter_mut().flatten() {
        *waited = (*waited + 1).min(MAX_AGE);
    }
    if let Some((_, waited)) = &mut state.restocked {
        *waited = (*waited + 1).min(MAX_AGE);
    }
    if state.gate.left > 0 {
        state.memory.free_for = (state.memory.free_for + 1).min(MAX_AGE);
    }
    before != (state.reading, state.news, state.restocked, state.memory.free_for)
}

/// The age counts from here, before the gate is asked.
pub fn begin_reading(state: &mut State, config: &Config) -> bool {
    let new = Some(Reading { age: 0, known: None });
    if !config.has_clock() || state.budget.refusals == 0 || state.reading == new {
        return false;
    }
    state.reading = new;
    true
}

/// Number, what is left and who holds anything, at one moment.
pub fn read(state: &mut State) -> bool {
    if state.reading.is_none_or(|reading| reading.known.is_some()) {
        return false;
    }
    let mut holders = [false; USERS];
    for (id, order) in state.accepted() {
        holders[usize::from(order.user)] |= state.gate.records[id] != Record::None;
    }
    let sold_out = state.gate.selling == Selling::Open && state.gate.left <= 0;
    if let Some(reading) = &mut state.reading {
        reading.known = Some((state.gate.number, sold_out, holders));
    }
    true
}

/// Holders go to the gate.
pub fn refuse(state: &mut State, config: &Config, user: u8) -> bool {
    let Some(reading) = state.reading else { return false };
    let Some((number, sold_out, holders)) = reading.known else { return false };
    let fresh = reading.age < MAX_AGE || config.mistake == Mistake::OldReadings;
    if state.budget.refusals == 0 || !fresh || !sold_out || holders[usize::from(user)] {
        return false;
    }
    state.budget.refusals -= 1;
    if number < state.memory.revealed {
        state.broke(Broken::Contradiction);
    } else if state.memory.free_for >= MAX_AGE {
        state.broke(Broken::StaleRefusal);
    }
    true
}
