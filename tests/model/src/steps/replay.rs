//! A database that went back is restored from the order log: `src/recovery/replay`. Payments are states of rows here.

use super::database::write_fence;
use crate::config::Config;
use crate::mistakes::Mistake;
use crate::state::{ORDERS, Record, Replay, Row, Selling, State};

/// The survey: what became of each order in the end. An end that the log does not have is taken from the gate. An
/// operator begins a replay once a process says that the database is behind.
pub fn begin(state: &mut State, config: &Config) -> bool {
    if !config.follows_places() || state.replay.is_some() || state.rebuild.is_some() || !state.compared {
        return false;
    }
    let witness = state.heard.place.max(state.log.place).max(state.gate.witness);
    if state.db.place >= witness {
        return false;
    }
    // Announced before the gate is asked: from now on it takes back no unit of an end from before.
    let announced = (witness.0 + 1, 0);
    state.heard.place = announced;
    state.heard.in_doubt = false;
    state.gate.witness = announced;
    let mut rows = [Row::None; ORDERS];
    for (id, row) in rows.iter_mut().enumerate() {
        *row = if state.log.accepted[id] { state.log.rows[id].max(Row::Confirmed) } else { Row::None };
        let ended = state.gate.selling != Selling::Missing && state.gate.records[id] == Record::Ended;
        if ended && row.is_live() {
            *row = Row::Cancelled;
        }
    }
    state.replay = Some(Replay { rows });
    true
}

/// One order, under its user's lease: ended orders first, because a live one may have got their unit.
pub fn restore(state: &mut State, config: &Config, order: u8) -> bool {
    let id = usize::from(order);
    let Some(replay) = state.replay else { return false };
    let (target, row) = (replay.rows[id], state.db.rows[id]);
    let user = state.user_of(id);
    if row.rank() >= target.rank() || !state.is_free(user) {
        return false;
    }
    let waits = |other: usize| {
        let ended = !replay.rows[other].is_live() && replay.rows[other] != Row::None;
        ended && state.db.rows[other].rank() < replay.rows[other].rank()
    };
    let first = config.mistake == Mistake::LiveFirst;
    if target.is_live() != first && (0..ORDERS).any(|other| waits(other) && other != id) && target.is_live() {
        return false;
    }
    if first && !target.is_live() && live_left(state, &replay) {
        return false;
    }
    let user = usize::from(user);
    let (was_live, is_live) = (row.is_live(), target.is_live());
    if is_live && !was_live && (state.db.units[user] >= 1 || state.db.sold >= state.db.stock) {
        // Refused and left without a row: the database stays behind.
        return false;
    }
    state.db.rows[id] = target;
    if is_live != was_live {
        let (units, sold) = (state.db.units[user], state.db.sold);
        (state.db.units[user], state.db.sold) =
            if is_live { (units + 1, sold + 1) } else { (units - 1, sold - 1) };
    }
    state.db.returns[id] |= target.returns();
    state.db.unlogged[id] |= target.returns();
    let token = state.next_token(user as u8);
    write_fence(state, user, token);
    true
}

fn live_left(state: &State, replay: &Replay) -> bool {
    (0..ORDERS).any(|id| replay.rows[id].is_live() && state.db.rows[id].rank() < replay.rows[id].rank())
}

/// Nothing is left: the database begins a line above every witness.
pub fn begin_line(state: &mut State) -> bool {
    let Some(replay) = state.replay else { return false };
    if (0..ORDERS).any(|id| state.db.rows[id].rank() < replay.rows[id].rank()) {
        return false;
    }
    let highest = state.db.place.max(state.heard.place).max(state.log.place);
    state.db.place = (highest.0 + 1, highest.1 + 1);
    state.heard.place = state.db.place;
    state.memory.lost_place = None;
    state.replay = None;
    true
}
