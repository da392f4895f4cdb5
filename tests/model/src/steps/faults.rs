//! Faults, each from a budget.

use crate::config::{Config, Finding};
use crate::mistakes::Mistake;
use crate::state::{
    COPIES, Entry, Gate, Heard, Lease, Owner, Record, Relay, Row, State, USERS, Work, Worker,
};

/// A holder stalls for longer than its lease.
pub fn end_lease(state: &mut State, user: u8) -> bool {
    let held = matches!(state.leases[usize::from(user)].owner, Owner::Worker(_) | Owner::Act);
    if !held || state.budget.stalls == 0 {
        return false;
    }
    state.budget.stalls -= 1;
    state.leases[usize::from(user)].owner = Owner::Nobody;
    true
}

/// Nobody renews the lease of a dead holder.
pub fn free_lease(state: &mut State, user: u8) -> bool {
    let dead = state.leases[usize::from(user)].owner == Owner::Dead;
    if dead {
        state.leases[usize::from(user)].owner = Owner::Nobody;
    }
    dead
}

/// What was not acknowledged is delivered again.
pub fn crash_worker(state: &mut State, config: &Config, worker: u8) -> bool {
    let at = usize::from(worker);
    let it = state.workers[at];
    if worker >= config.workers || state.budget.worker_crashes == 0 {
        return false;
    }
    if it.work == Work::Idle && !config.follows_places() {
        return false;
    }
    state.budget.worker_crashes -= 1;
    let early = config.mistake == Mistake::AckBeforeCommit && it.work >= Work::Leased;
    if it.work != Work::Idle && it.work != Work::Acked && !early {
        let id = usize::from(it.order);
        state.queue[id] = (state.queue[id] + 1).min(COPIES);
    }
    kill_owner(state, Owner::Worker(worker));
    state.workers[at] = Worker { heard: newcomer(config), ..Worker::idle() };
    state.judge_witnesses();
    true
}

fn newcomer(config: &Config) -> Heard {
    Heard { place: (0, 0), in_doubt: config.follows_places() }
}

fn kill_owner(state: &mut State, owner: Owner) {
    for lease in &mut state.leases {
        if lease.owner == owner {
            lease.owner = Owner::Dead;
        }
    }
}

/// Everything that fronts had in memory is gone: publishes, what they knew, and changes under way.
pub fn crash_front(state: &mut State, config: &Config) -> bool {
    if state.budget.front_crashes == 0 {
        return false;
    }
    state.budget.front_crashes -= 1;
    state.relay.fill(Relay::None);
    state.news.fill(None);
    state.known = (0, 0);
    state.heard = newcomer(config);
    (state.act, state.compare, state.reading, state.reader) = (None, None, None, None);
    if state.restocked.take().is_some() {
        // Maintenance finishes the act later, and answers nobody.
        state.db.told = state.db.told.max(state.gate.number);
    }
    kill_owner(state, Owner::Act);
    state.judge_witnesses();
    true
}

/// What it has done so far stays.
pub fn crash_recovery(state: &mut State) -> bool {
    if state.budget.front_crashes == 0 || state.rebuild.is_none() && state.replay.is_none() {
        return false;
    }
    state.budget.front_crashes -= 1;
    (state.rebuild, state.replay) = (None, None);
    true
}

/// RabbitMQ delivers at least once.
pub fn duplicate(state: &mut State, order: u8) -> bool {
    let id = usize::from(order);
    if state.budget.duplicates == 0 || state.queue[id] == 0 || state.queue[id] == COPIES {
        return false;
    }
    state.budget.duplicates -= 1;
    state.queue[id] += 1;
    true
}

/// The queue is purged or re-created. The order log stays.
pub fn purge(state: &mut State) -> bool {
    if state.budget.purges == 0 || state.queue.iter().all(|copies| *copies == 0) {
        return false;
    }
    state.budget.purges -= 1;
    state.queue.fill(0);
    true
}

/// From here on Redis may come back as it is now.
pub fn save_gate(state: &mut State) -> bool {
    if state.budget.redis_back == 0 || state.saved_gate.is_some() {
        return false;
    }
    state.saved_gate = Some(Box::new(state.gate.clone()));
    true
}

/// Leases go back as well: those taken since are free again. Redis restarts, so it knows no script.
pub fn lose_gate(state: &mut State, config: &Config) -> bool {
    let Some(saved) = state.saved_gate.take() else { return false };
    state.budget.redis_back -= 1;
    replace_gate(state, config, *saved);
    true
}

/// Nothing is left, not even `P:places`.
pub fn empty_gate(state: &mut State, config: &Config) -> bool {
    if state.budget.redis_empty == 0 {
        return false;
    }
    state.budget.redis_empty -= 1;
    replace_gate(state, config, Gate::missing());
    true
}

fn replace_gate(state: &mut State, config: &Config, gate: Gate) {
    for id in 0..state.orders.len() {
        let lost = state.gate.outbox[id] != Entry::None && gate.outbox[id] == Entry::None;
        if lost && state.db.rows[id] == Row::None && !state.log.accepted[id] {
            state.memory.exposed[id] = true;
        }
    }
    state.gate = gate;
    state.compared = config.mistake == Mistake::NoComparison;
    state.compare = None;
    state.leases = [Lease { owner: Owner::Nobody, token: 0 }; USERS];
    state.memory.returned = state.gate.records.map(|record| u8::from(record == Record::Ended));
    state.judge_witnesses();
}

/// From here on the database may come back as it is now.
pub fn save_db(state: &mut State) -> bool {
    if state.budget.db_back == 0 || state.saved_db.is_some() {
        return false;
    }
    state.saved_db = Some(Box::new(state.db.clone()));
    true
}

/// Every connection is opened again. What a reader may have seen of a change that nobody else had heard of is the
/// documented limit of the order log.
pub fn lose_db(state: &mut State, config: &Config) -> bool {
    let is_heard = state.gate.witness >= state.db.place;
    if config.leaves_out(Finding::SwiftLoss) && !is_heard {
        return false;
    }
    let Some(saved) = state.saved_db.take() else { return false };
    if *saved == state.db {
        return false;
    }
    state.budget.db_back -= 1;
    for id in 0..state.orders.len() {
        let unknown =
            state.log.rows[id].rank() < state.db.rows[id].rank() && state.gate.records[id] != Record::Ended;
        if unknown && saved.rows[id].rank() < state.db.rows[id].rank() {
            let logged = if state.log.accepted[id] { 1 } else { 0 };
            state.memory.seen[id] = state.memory.seen[id].map(|seen| seen.min(logged));
        }
    }
    state.memory.lost_place = Some(state.db.place);
    state.db = *saved;
    state.heard.in_doubt = true;
    for worker in &mut state.workers {
        worker.heard.in_doubt = true;
    }
    state.judge_witnesses();
    true
}
