//! A counterexample in words.

use std::fmt::Write as _;

use crate::action::Action;
use crate::state::{Entry, Record, Row, State};

/// The steps with what they leave, one a line.
pub fn written(path: &[(State, Option<Action>)]) -> String {
    let mut text = String::new();
    for (nth, pair) in path.windows(2).enumerate() {
        let action = pair[0].1.map_or_else(String::new, |action| format!("{action:?}"));
        let _ = writeln!(text, "{:>3}. {action:<34} {}", nth + 1, summary(&pair[1].0));
    }
    text
}

fn summary(state: &State) -> String {
    let gate = &state.gate;
    let redis = if state.compared { "" } else { ", not compared" };
    let mut text = format!("gate {:?} {:?} left {}{redis};", gate.selling, gate.number, gate.left);
    for (id, order) in state.accepted() {
        let _ = write!(text, " order {id} of user {}:", order.user);
        if gate.records[id] != Record::None {
            let _ = write!(text, " {}", format!("{:?}", gate.records[id]).to_lowercase());
        }
        if gate.outbox[id] != Entry::None {
            let _ = write!(text, ", entry {:?}", gate.outbox[id]);
        }
        if state.queue[id] > 0 {
            let _ = write!(text, ", {} queued", state.queue[id]);
        }
        if state.db.rows[id] != Row::None {
            let _ = write!(text, ", row {:?}", state.db.rows[id]);
        }
        text.push(';');
    }
    text
}
