//! Changes of an order after its row: payments, deadlines, cancellations, and what the gate learns of them. One change
//! at a time is under way; it races with the workers, the sweep and a rebuild.

use super::database::{Changed, change};
use super::gate::{self, Outcome, Settled, mark_ended};
use super::relay::answer;
use super::witness::{advance, is_current};
use crate::config::Config;
use crate::mistakes::Mistake;
use crate::state::{Act, Entry, Kind, Lease, Owner, Record, Row, Selling, State, Step};

/// Takes the user's lease. Time is left out: a deadline may pass at any moment after the confirmation.
pub fn begin(state: &mut State, config: &Config, kind: Kind, order: u8) -> bool {
    let id = usize::from(order);
    let Some(placed) = state.orders[id] else { return false };
    if state.act.is_some() || !is_current(state, config) || !is_possible(state, kind, id) {
        return false;
    }
    if kind == Kind::Pay && !state.paying[id] {
        state.budget.payments -= 1;
        state.paying[id] = true;
    }
    let done = kind == Kind::Return || kind == Kind::Pay && state.db.rows[id] == Row::Paid;
    if done {
        state.act = Some(Act { kind, order, token: 0, line: state.heard.place.0, step: Step::Committed });
        return true;
    }
    if !state.is_free(placed.user) {
        return false;
    }
    let token = state.next_token(placed.user);
    state.leases[usize::from(placed.user)] = Lease { owner: Owner::Act, token };
    state.act = Some(Act { kind, order, token, line: state.heard.place.0, step: Step::Leased });
    true
}

fn is_possible(state: &State, kind: Kind, id: usize) -> bool {
    let row = state.db.rows[id];
    match kind {
        // The provider repeats an event that was not answered.
        Kind::Pay => state.paying[id] || state.budget.payments > 0 && row == Row::Confirmed,
        Kind::Expire => state.budget.expiries > 0 && row == Row::Confirmed,
        Kind::Cancel => {
            let in_flight = state.gate.outbox[id] != Entry::None;
            state.budget.cancels > 0 && (row == Row::Confirmed || row == Row::None && in_flight)
        }
        Kind::Return => {
            let takes = matches!(state.gate.selling, Selling::Open | Selling::Paused);
            state.db.returns[id] && takes && state.compared
        }
        // `src/maintenance/adopter.rs`.
        Kind::Adopt => {
            let loaded = matches!(state.gate.selling, Selling::Open | Selling::Paused) && state.compared;
            let older = state.number_of(id).0 < state.gate.number.0;
            row.is_live() && loaded && older && state.gate.records[id] != Record::Held
        }
    }
}

/// The last look at the lease before COMMIT, or before the script.
pub fn check(state: &mut State, config: &Config) -> bool {
    let Some(act) = state.act.filter(|act| act.step == Step::Leased) else { return false };
    let user = usize::from(state.user_of(usize::from(act.order)));
    if state.leases[user] != (Lease { owner: Owner::Act, token: act.token }) {
        state.act = None;
        return true;
    }
    let ends = matches!(act.kind, Kind::Expire | Kind::Cancel);
    if config.mistake == Mistake::ReturnBeforeCommit && ends {
        gate::settle(state, config, act.order, Outcome::Ended, (state.known, state.heard.place));
    }
    state.act = Some(Act { step: Step::Checked, ..act });
    true
}

/// The transaction, then the lease is released.
pub fn commit(state: &mut State, config: &Config) -> bool {
    let Some(act) = state.act.filter(|act| act.step == Step::Checked) else { return false };
    let id = usize::from(act.order);
    if act.kind == Kind::Adopt {
        return adopt(state, config, act);
    }
    let current = is_current(state, config);
    let changed = if current { change(state, config, act.kind, id, act.token) } else { Changed::Stale };
    state.release(id, act.token);
    state.act = None;
    match changed {
        Changed::Now => {
            state.heard.place = state.heard.place.max(state.db.place);
            match act.kind {
                Kind::Expire => state.budget.expiries -= 1,
                Kind::Cancel => state.budget.cancels -= 1,
                _ => {}
            }
            if config.mistake == Mistake::PaymentBeforeLog && act.kind == Kind::Pay {
                state.memory.paid[id] = true;
            }
            state.act = Some(Act { step: Step::Committed, ..act });
        }
        // A payment that came too late is kept for refund.
        Changed::Refused if act.kind == Kind::Pay && state.db.rows[id] != Row::Paid => {
            state.paying[id] = false
        }
        Changed::Refused | Changed::Stale => {}
    }
    true
}

fn adopt(state: &mut State, config: &Config, act: Act) -> bool {
    let id = usize::from(act.order);
    let live = is_current(state, config) && state.db.rows[id].is_live();
    let adopted = if live { gate::adopt(state, config, id, state.known) } else { None };
    state.release(id, act.token);
    state.act = adopted.map(|number| Act { step: Step::Returned(number), ..act });
    true
}

/// A payment goes into the log and is answered (`src/orders/payments.rs`). An end is reported to the gate
/// (`give_back` in `src/settlement/returns.rs`), and the buyer who cancels is answered.
pub fn finish(state: &mut State, config: &Config) -> bool {
    let Some(act) = state.act.filter(|act| act.step == Step::Committed) else { return false };
    let id = usize::from(act.order);
    if act.kind == Kind::Pay {
        if is_current(state, config) {
            state.log.rows[id] = state.log.rows[id].max(state.db.rows[id]);
            state.log.place = state.log.place.max(state.heard.place);
            state.memory.paid[id] |= state.db.rows[id] == Row::Paid;
            state.paying[id] = false;
        }
        state.act = None;
        return true;
    }
    let mut next = None;
    // `settle.lua` compares the lines.
    let outdated = act.line < state.heard.place.max(state.gate.witness).0;
    if is_current(state, config) && (!outdated || config.mistake == Mistake::OldReturns) {
        state.known = state.known.max(state.db.told).max(state.highest_row());
        let knows = (state.known, state.heard.place);
        match gate::settle(state, config, act.order, Outcome::Ended, knows) {
            Settled::Frozen => mark_ended(state, id),
            Settled::Done(number) => next = Some(Act { step: Step::Returned(number), ..act }),
            Settled::NotCompared | Settled::NotLoaded => {}
        }
    }
    let marked = matches!(state.gate.outbox[id], Entry::None | Entry::Ended);
    if act.kind == Kind::Cancel && (marked || config.mistake == Mistake::AnswerUnmarked) {
        answer(state, id, Row::Cancelled);
    }
    state.act = next;
    true
}

/// The gate does not answer after COMMIT, so the buyer who cancels is not answered either.
pub fn lose_return(state: &mut State, config: &Config) -> bool {
    let Some(act) = state.act.filter(|act| act.step == Step::Committed && act.kind != Kind::Pay) else {
        return false;
    };
    if state.budget.lost_answers == 0 {
        return false;
    }
    state.budget.lost_answers -= 1;
    if act.kind == Kind::Cancel && config.mistake == Mistake::AnswerUnmarked {
        answer(state, usize::from(act.order), Row::Cancelled);
    }
    state.act = None;
    true
}

/// `Store::finish_returns`.
pub fn record_return(state: &mut State, config: &Config) -> bool {
    let Some(act) = state.act else { return false };
    let Step::Returned(number) = act.step else { return false };
    state.act = None;
    if is_current(state, config) {
        state.db.told = state.db.told.max(number);
        if act.kind != Kind::Adopt {
            state.db.returns[usize::from(act.order)] = false;
        }
        advance(state, config);
        state.heard.place = state.heard.place.max(state.db.place);
    }
    state.known = state.known.max(number);
    true
}
