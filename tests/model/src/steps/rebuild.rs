//! A rebuild of the gate: freeze, outbox, log, then the rows user by user, load, compare, sell. `src/recovery/rebuild`.

use super::gate::{mark_recorded, next_number};
use super::witness::{advance, is_current};
use crate::config::Config;
use crate::mistakes::Mistake;
use crate::state::{Entry, ORDERS, Phase, Rebuild, Record, Row, Selling, State, USERS};

/// `lua/gate/rebuild_begin.lua`, after the database was compared with gate or log. The epoch is above every known one,
/// those of the log included, so the second freeze of the real code is not needed.
pub fn begin(state: &mut State, config: &Config) -> bool {
    let needed = matches!(state.gate.selling, Selling::Frozen | Selling::Missing);
    if state.rebuild.is_some() || state.replay.is_some() || !state.compared || !needed {
        return false;
    }
    if config.follows_places() {
        let witness = if state.gate.witness == (0, 0) { state.log.place } else { state.gate.witness };
        state.heard.place = state.heard.place.max(witness);
    }
    if !is_current(state, config) {
        return false;
    }
    let known = [state.highest_row(), state.db.told, state.known, state.gate.number, state.highest_logged()];
    let epoch = known.iter().map(|number| number.0).max().unwrap_or_default() + 1;
    if state.gate.selling == Selling::Missing {
        state.gate.left = 0;
    }
    state.gate.selling = Selling::Frozen;
    state.gate.number = (epoch, 0);
    state.db.told = state.db.told.max((epoch, 0));
    commit(state, config);
    let rows_first = config.mistake == Mistake::RowsFirst;
    let phase = if rows_first { Phase::Rows(0) } else { Phase::Begun };
    let owed = if rows_first { state.db.returns } else { [false; ORDERS] };
    let records = [Record::None; ORDERS];
    state.rebuild = Some(Rebuild { phase, epoch, waiting: [false; ORDERS], owed, records });
    true
}

fn commit(state: &mut State, config: &Config) {
    advance(state, config);
    state.heard.place = state.heard.place.max(state.db.place);
}

/// The next step. A gate that is no longer frozen in this epoch ends the rebuild.
pub fn step(state: &mut State, config: &Config) -> bool {
    let Some(mut it) = state.rebuild else { return false };
    if state.gate.selling != Selling::Frozen || state.gate.number.0 != it.epoch {
        state.rebuild = None;
        return true;
    }
    let rows_first = config.mistake == Mistake::RowsFirst;
    match it.phase {
        Phase::Begun => {
            mark_recorded(state);
            it.waiting = state.gate.outbox.map(|entry| entry != Entry::None);
            it.phase = Phase::Outbox;
        }
        Phase::Outbox => {
            if !read_log(state, config, &mut it) {
                state.rebuild = None;
                return true;
            }
            if rows_first {
                load(state, &mut it);
            }
        }
        Phase::Log => {
            it.owed = state.db.returns;
            it.phase = Phase::Rows(0);
        }
        Phase::Rows(user) if usize::from(user) < USERS => {
            read_rows(state, &mut it, user);
            it.phase = Phase::Rows(user + 1);
        }
        Phase::Rows(_) if rows_first => it.phase = Phase::Begun,
        Phase::Rows(_) => load(state, &mut it),
        Phase::Loaded => return finish(state, config, it),
    }
    state.rebuild = Some(it);
    true
}

/// `gather_log` and `look_up`. `false` if the database lacks what the log has.
fn read_log(state: &mut State, config: &Config, it: &mut Rebuild) -> bool {
    if config.mistake != Mistake::NoLog {
        for (waiting, logged) in it.waiting.iter_mut().zip(state.log.accepted) {
            *waiting |= logged;
        }
    }
    if config.follows_places() {
        state.heard.place = state.heard.place.max(state.log.place);
    }
    let behind = (0..ORDERS).any(|id| state.log.rows[id].rank() > state.db.rows[id].rank());
    if behind || !is_current(state, config) {
        return false;
    }
    for (waiting, row) in it.waiting.iter_mut().zip(state.db.rows) {
        *waiting &= row == Row::None;
    }
    it.phase = Phase::Log;
    true
}

/// A page of rows, and the orders of its users without a row; their entries go back into the outbox
/// (`lua/gate/rebuild_flight.lua`).
fn read_rows(state: &mut State, it: &mut Rebuild, user: u8) {
    let orders: Vec<usize> =
        state.accepted().filter(|(_, order)| order.user == user).map(|(id, _)| id).collect();
    for id in orders {
        it.records[id] = match state.db.rows[id] {
            row if row.is_live() => Record::Held,
            row if row.returns() => Record::Ended,
            Row::None if it.waiting[id] => {
                refill(state, id);
                Record::Held
            }
            _ => Record::None,
        };
    }
}

fn refill(state: &mut State, id: usize) {
    if state.gate.outbox[id] == Entry::None {
        state.gate.outbox[id] = Entry::Outbox;
    }
}

/// `lua/gate/rebuild_load.lua`: one step, with the stock as it stands now.
fn load(state: &mut State, it: &mut Rebuild) {
    // Where the rows were read first: what was found waiting since.
    for id in 0..ORDERS {
        if it.waiting[id] && it.records[id] == Record::None && state.db.rows[id] == Row::None {
            it.records[id] = Record::Held;
            refill(state, id);
        }
    }
    let held = it.records.iter().filter(|record| **record == Record::Held).count();
    state.gate.left = state.db.stock as i8 - held as i8;
    state.gate.version = state.db.version;
    state.gate.records = it.records;
    state.memory.returned = it.records.map(|record| u8::from(record == Record::Ended));
    next_number(state);
    it.phase = Phase::Loaded;
}

/// `src/recovery/rebuild/finish.rs`: the returns that the load has made are recorded, the books are compared, and the
/// sale sells. Books that do not balance are loaded once more.
fn finish(state: &mut State, config: &Config, mut it: Rebuild) -> bool {
    if !is_current(state, config) {
        state.rebuild = None;
        return true;
    }
    for id in 0..ORDERS {
        if it.owed[id] && it.records[id] == Record::Ended {
            state.db.returns[id] = false;
        }
    }
    let balanced = config.mistake == Mistake::RowsFirst || (0..ORDERS).all(|id| is_balanced(state, id));
    if !balanced {
        it.phase = Phase::Log;
        state.rebuild = Some(it);
        return true;
    }
    mark_recorded(state);
    state.gate.selling = Selling::Open;
    let number = next_number(state);
    state.db.told = state.db.told.max(number);
    state.known = state.known.max(number);
    commit(state, config);
    state.rebuild = None;
    true
}

fn is_balanced(state: &State, id: usize) -> bool {
    let row = state.db.rows[id];
    let in_flight = row == Row::None && state.gate.outbox[id] != Entry::None;
    let expected =
        row.is_live() || in_flight || state.db.returns[id] && state.gate.records[id] == Record::Held;
    (state.gate.records[id] == Record::Held) == expected
}
