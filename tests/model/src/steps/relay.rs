//! From the outbox to the broker, and what a buyer reads of an order on its way.

use super::gate::{Outcome, Settled, mark_ended, settle};
use super::witness::is_current;
use crate::config::Config;
use crate::mistakes::Mistake;
use crate::state::{Broken, COPIES, Entry, Order, Reader, Record, Relay, Row, Selling, State};

/// A publish reaches queue and log under one confirm (`src/queue/topology.rs`).
pub fn publish(state: &mut State, order: u8) -> bool {
    let id = usize::from(order);
    if state.relay[id] != Relay::Publish {
        return false;
    }
    state.queue[id] = (state.queue[id] + 1).min(COPIES);
    state.log.accepted[id] = true;
    state.log.place = state.log.place.max(state.heard.place);
    state.relay[id] = Relay::Unconfirmed;
    true
}

/// The mark acts only on an entry that is there.
pub fn confirm(state: &mut State, config: &Config, order: u8) -> bool {
    let id = usize::from(order);
    if state.relay[id] != Relay::Unconfirmed {
        return false;
    }
    state.relay[id] = Relay::None;
    if state.gate.outbox[id] == Entry::Outbox {
        let deleted = config.mistake == Mistake::DeleteAtConfirm;
        state.gate.outbox[id] = if deleted { Entry::None } else { Entry::Broker };
    }
    true
}

/// An unconfirmed publish is left to the sweep.
pub fn lose_confirm(state: &mut State, order: u8) -> bool {
    let id = usize::from(order);
    if state.relay[id] != Relay::Unconfirmed || state.budget.lost_answers == 0 {
        return false;
    }
    state.budget.lost_answers -= 1;
    state.relay[id] = Relay::None;
    true
}

/// An entry is due at any time here; the real sweep waits, and doubles the wait.
pub fn sweep(state: &mut State, config: &Config, order: u8) -> bool {
    let id = usize::from(order);
    if state.gate.outbox[id] == Entry::None {
        return false;
    }
    let current = is_current(state, config);
    if current {
        state.known = state.known.max(state.highest_row());
    }
    if current && state.db.rows[id] != Row::None {
        let outcome = Outcome::of(state.db.rows[id]);
        let user = state.user_of(id);
        if outcome == Outcome::Replaced && !state.is_free(user) {
            return false;
        }
        let knows = (state.known, state.heard.place);
        return matches!(settle(state, config, order, outcome, knows), Settled::Done(_));
    }
    if state.relay[id] != Relay::None || state.gate.outbox[id] == Entry::Ended {
        return false;
    }
    let overtaken = current && state.highest_row() > state.number_of(id);
    let idle = current && state.queue.iter().all(|copies| *copies == 0);
    let astray = match state.gate.outbox[id] {
        Entry::Outbox => state.queue[id] < COPIES,
        _ => state.queue[id] == 0 && (overtaken || idle),
    };
    if !astray {
        return false;
    }
    if config.mistake == Mistake::RepublishWithoutId {
        return publish_copy(state, id);
    }
    state.relay[id] = Relay::Publish;
    true
}

/// A copy without the order's id gets an id of its own.
fn publish_copy(state: &mut State, id: usize) -> bool {
    let (Some(order), Some(copy)) = (state.orders[id], state.orders.iter().position(Option::is_none)) else {
        return false;
    };
    state.orders[copy] = Some(Order { ..order });
    state.relay[copy] = Relay::Publish;
    true
}

/// The gate's half of `look_up` in `src/intake/status.rs`. A believed entry answers at once.
pub fn read_gate(state: &mut State, config: &Config, order: u8) -> bool {
    let id = usize::from(order);
    if state.budget.reads == 0 || state.reader.is_some() || state.orders[id].is_none() {
        return false;
    }
    state.budget.reads -= 1;
    if config.mistake == Mistake::RowThenGate && state.db.rows[id] == Row::None {
        // It looks into the gate later, and has seen no row by then.
        state.reader = Some(Reader { order, in_flight: false });
        return true;
    }
    let in_flight = !matches!(state.gate.outbox[id], Entry::None | Entry::Ended);
    let believed =
        state.compared && state.gate.selling != Selling::Frozen && state.gate.number >= state.known;
    if in_flight && (believed || config.mistake == Mistake::BelieveOldEntries) {
        answer(state, id, Row::None);
    } else {
        state.reader = Some(Reader { order, in_flight });
    }
    true
}

/// The database's half.
pub fn read_row(state: &mut State, config: &Config) -> bool {
    let Some(Reader { order, in_flight }) = state.reader.take() else { return false };
    let id = usize::from(order);
    if config.mistake == Mistake::RowThenGate {
        return read_gate_last(state, id);
    }
    if !is_current(state, config) {
        // 503 `status_unavailable`.
        return true;
    }
    let row = state.db.rows[id];
    if row != Row::None {
        // `look_up` in `src/intake/status.rs`.
        if in_flight || config.mistake != Mistake::MarkWhatWasSeen {
            mark_ended(state, id);
        }
        answer(state, id, row);
    } else if in_flight {
        answer(state, id, Row::None);
    } else {
        not_found(state, id);
    }
    true
}

/// `src/intake/completeness.rs`: 404 only if neither server may lack the order.
fn not_found(state: &mut State, id: usize) {
    let complete = state.compared && matches!(state.gate.selling, Selling::Open | Selling::Paused);
    if complete && state.gate.records[id] == Record::None && !state.memory.exposed[id] {
        state.broke(Broken::NotFound);
    }
}

fn read_gate_last(state: &mut State, id: usize) -> bool {
    match state.gate.outbox[id] {
        Entry::None => not_found_without_a_look(state, id),
        _ => answer(state, id, Row::None),
    }
    true
}

fn not_found_without_a_look(state: &mut State, id: usize) {
    if state.compared && state.gate.selling == Selling::Open && !state.memory.exposed[id] {
        state.broke(Broken::NotFound);
    }
}

/// An answer to the buyer; `Row::None` is `accepted`.
pub fn answer(state: &mut State, id: usize, row: Row) {
    // Which of the two ends it was is not kept where the database lost it: see `end_of` in the replay.
    let seen = match row {
        Row::None => 0,
        Row::Confirmed => 1,
        Row::Paid => 2,
        Row::Expired | Row::Cancelled => 3,
        Row::Replaced | Row::Refused => 4,
    };
    let before = state.memory.seen[id].unwrap_or(0);
    if seen < before.min(2) || before >= 2 && seen != before {
        state.broke(Broken::WentBackwards);
    }
    state.memory.seen[id] = Some(seen);
}
