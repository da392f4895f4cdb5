//! Who has lost writes? The gate's number and the database's place, and who compares them.

use super::gate::{freeze_if_behind, mark_recorded};
use crate::config::Config;
use crate::mistakes::Mistake;
use crate::state::{Heard, Number, Place, Selling, State};

/// `src/store/places/advance.rs`: a commit takes the sale's next place.
pub fn advance(state: &mut State, config: &Config) {
    if config.follows_places() {
        state.db.place.1 += 1;
    }
}

/// `ensure_current` in `src/store/places/check.rs`: after a new connection the other witnesses are heard. `None` if Redis
/// may have lost what it had witnessed.
pub fn hear(state: &State, config: &Config, heard: Heard) -> Option<Heard> {
    if !heard.in_doubt || config.mistake == Mistake::NoWitness {
        return Some(heard);
    }
    state.compared.then(|| Heard { place: heard.place.max(state.gate.witness), in_doubt: false })
}

/// Whether the database lacks a commit that this process knows of.
pub fn is_behind(state: &State, config: &Config, heard: Heard) -> bool {
    state.db.place < heard.place && config.mistake != Mistake::NoWitness
}

/// The same for the fronts.
pub fn is_current(state: &mut State, config: &Config) -> bool {
    let Some(heard) = hear(state, config, state.heard) else { return false };
    state.heard = heard;
    !is_behind(state, config, heard)
}

/// The reference in `log_outbox` and the row are read together, so what is appended is the row as it stands.
pub fn write_log(state: &mut State, config: &Config, order: u8) -> bool {
    let id = usize::from(order);
    if !state.db.unlogged[id] || !is_current(state, config) {
        return false;
    }
    state.log.rows[id] = state.log.rows[id].max(state.db.rows[id]);
    state.log.place = state.log.place.max(state.heard.place);
    state.db.unlogged[id] = false;
    true
}

/// `compare_places` in `src/settlement/places.rs`, once a second in every process; and the minute's look at the numbers in
/// the rows, in `src/maintenance/books_check.rs`.
pub fn compare_places(state: &mut State, config: &Config) -> bool {
    if !state.compared {
        return false;
    }
    // `lua/gate/witness.lua` makes the check of the caller's number as well.
    let loaded = state.gate.selling != Selling::Missing;
    if !is_behind(state, config, state.heard) && config.mistake != Mistake::NoLook {
        state.known = state.known.max(state.db.told).max(state.highest_row());
    }
    let froze = loaded && freeze_if_behind(state, config, state.known);
    if !config.follows_places() {
        return froze;
    }
    let before = (state.heard, state.gate.witness, state.workers.map(|worker| worker.heard));
    state.heard.place = state.heard.place.max(state.gate.witness);
    state.heard.in_doubt = false;
    if !is_behind(state, config, state.heard) {
        if loaded {
            state.gate.witness = state.gate.witness.max(state.db.place);
        }
    } else {
        // It has Redis keep the place for the others.
        state.gate.witness = state.gate.witness.max(state.heard.place);
    }
    for worker in &mut state.workers {
        state.gate.witness = state.gate.witness.max(worker.heard.place);
        worker.heard = Heard { place: state.gate.witness, in_doubt: false };
    }
    state.heard.place = state.heard.place.max(state.gate.witness);
    froze || before != (state.heard, state.gate.witness, state.workers.map(|worker| worker.heard))
}

/// `highest_recorded`: rows first. While the log is read, rows may be written; their orders are in the log.
pub fn compare(state: &mut State) -> bool {
    if state.compared || state.compare.is_some() {
        return false;
    }
    state.compare = Some(state.highest_row().max(state.db.told));
    true
}

/// `highest_logged`, `mark_recorded`, `freeze.lua` and `compare_places`.
pub fn finish_compare(state: &mut State) -> bool {
    let Some(rows) = state.compare.take() else { return false };
    let known = rows.max(state.highest_logged());
    mark_recorded(state);
    state.known = state.known.max(known);
    if state.gate.selling != Selling::Missing && state.gate.number < known {
        state.gate.selling = Selling::Frozen;
    }
    let place: Place = state.log.place.max(state.gate.witness).max(state.heard.place);
    state.heard.place = place;
    if state.db.place < place {
        state.gate.witness = place;
    }
    state.compared = true;
    true
}

impl State {
    /// The highest number of an order in the log.
    pub fn highest_logged(&self) -> Number {
        let logged = self.accepted().filter(|(id, _)| self.log.accepted[*id]);
        logged.map(|(_, order)| order.number).max().unwrap_or_default()
    }

    /// What a settled gate says of the database's place.
    pub fn witnessed(&self, config: &Config) -> Place {
        if config.follows_places() && self.compared { self.gate.witness } else { (0, 0) }
    }
}
