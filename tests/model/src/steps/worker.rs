//! A worker with one delivery: lease, transaction, acknowledge, release, settle. Batches are left out: the orders of a
//! batch share a transaction and have outcomes of their own (`src/worker/attempt.rs`).

use super::database::{Recorded, record};
use super::gate::{self, Outcome, Settled, mark_ended};
use super::witness::{hear, is_behind};
use crate::config::Config;
use crate::mistakes::Mistake;
use crate::state::{Entry, Lease, Owner, Row, Selling, State, Work};

/// RabbitMQ hands out a message.
pub fn deliver(state: &mut State, config: &Config, worker: u8, order: u8) -> bool {
    let (at, id) = (usize::from(worker), usize::from(order));
    if worker >= config.workers || state.workers[at].work != Work::Idle || state.queue[id] == 0 {
        return false;
    }
    state.queue[id] -= 1;
    state.workers[at].work = Work::Got;
    state.workers[at].order = order;
    true
}

/// While the database is behind, the worker holds its delivery.
pub fn take_lease(state: &mut State, config: &Config, worker: u8) -> bool {
    let at = usize::from(worker);
    let it = state.workers[at];
    let user = state.user_of(usize::from(it.order));
    if it.work != Work::Got || !state.is_free(user) || !may_write(state, config, at) {
        return false;
    }
    let token = state.next_token(user);
    state.leases[usize::from(user)] = Lease { owner: Owner::Worker(worker), token };
    state.workers[at].token = token;
    state.workers[at].work = Work::Leased;
    true
}

fn may_write(state: &mut State, config: &Config, at: usize) -> bool {
    let Some(heard) = hear(state, config, state.workers[at].heard) else { return false };
    state.workers[at].heard = heard;
    !is_behind(state, config, heard)
}

/// Each process measures its own lease; here the check reads the lease itself.
pub fn check_lease(state: &mut State, config: &Config, worker: u8) -> bool {
    let at = usize::from(worker);
    let it = state.workers[at];
    if it.work != Work::Leased {
        return false;
    }
    let user = usize::from(state.user_of(usize::from(it.order)));
    let mine = Lease { owner: Owner::Worker(worker), token: it.token };
    if state.leases[user] != mine {
        // It takes the lease again.
        state.workers[at].work = Work::Got;
        return true;
    }
    if config.mistake == Mistake::ReleaseBeforeCommit {
        state.leases[user].owner = Owner::Nobody;
    }
    if config.mistake == Mistake::SettleBeforeCommit {
        let knows = (state.number_of(usize::from(it.order)), it.heard.place);
        gate::settle(state, config, it.order, Outcome::Kept, knows);
    }
    state.workers[at].work = Work::Checked;
    true
}

/// The transaction is one step: unique keys and row locks serialise it.
pub fn commit(state: &mut State, config: &Config, worker: u8) -> bool {
    let at = usize::from(worker);
    let it = state.workers[at];
    if it.work != Work::Checked {
        return false;
    }
    let id = usize::from(it.order);
    let recorded =
        if may_write(state, config, at) { record(state, config, id, it.token) } else { Recorded::Stale };
    match recorded {
        Recorded::Stale => {
            state.release(id, it.token);
            state.workers[at].work = Work::Got;
        }
        Recorded::Already(row) | Recorded::Now(row) => {
            state.workers[at].outcome = row;
            state.workers[at].work = Work::Committed;
            if recorded == Recorded::Now(row) {
                let place = state.db.place;
                state.workers[at].heard.place = state.workers[at].heard.place.max(place);
            }
        }
    }
    true
}

/// Both are one step: what lies between them leaves only a lease that ends by itself.
pub fn acknowledge(state: &mut State, worker: u8) -> bool {
    let at = usize::from(worker);
    let it = state.workers[at];
    if it.work != Work::Committed {
        return false;
    }
    state.release(usize::from(it.order), it.token);
    state.workers[at].work = Work::Acked;
    true
}

/// `Outcomes::settle` in `src/settlement/batch.rs`. What fails is left to the sweep. The adoption of an order that a
/// rebuilt gate does not know is left to the search for such orders.
pub fn settle(state: &mut State, config: &Config, worker: u8) -> bool {
    let at = usize::from(worker);
    let it = state.workers[at];
    if it.work != Work::Acked {
        return false;
    }
    let id = usize::from(it.order);
    let outcome = Outcome::of(it.outcome);
    if it.outcome == Row::Refused
        && state.gate.outbox[id] != Entry::None
        && state.gate.selling == Selling::Open
    {
        state.gate.selling = Selling::Paused;
        gate::next_number(state);
    }
    let user = state.user_of(id);
    if outcome != Outcome::Replaced || state.is_free(user) {
        let knows = (state.number_of(id), it.heard.place);
        match gate::settle(state, config, it.order, outcome, knows) {
            Settled::Frozen => mark_ended(state, id),
            Settled::NotCompared | Settled::NotLoaded | Settled::Done(_) => {}
        }
        state.workers[at].heard.place = state.workers[at].heard.place.max(state.witnessed(config));
    }
    state.workers[at].work = Work::Idle;
    true
}
