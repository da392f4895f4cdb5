//! Liveness: can the system come to its end from every state that it can reach, by its own steps alone?

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use stateright::Model as _;

use crate::config::Config;
use crate::model::{Protocol, is_due};
use crate::state::State;

/// The graph of a configuration, with the steps that the system takes by itself, backwards.
struct Graph {
    /// For each state, those from which one due step leads to it.
    before: Vec<Vec<u32>>,
    /// States in which every order has ended and the books balance.
    good: Vec<u32>,
}

/// What was found.
#[derive(Debug)]
pub struct Reached {
    /// Distinct states.
    pub states: usize,
    /// States from which no way leads to a good end.
    pub stuck: usize,
}

/// Every state is reached by any step; from there only due steps count, so neither luck nor a person is needed. For
/// configurations of some hundred thousand states: the whole graph is in memory.
pub fn ends_from_everywhere(config: Config) -> Reached {
    let graph = Graph::of(&Protocol { config });
    let states = graph.before.len();
    let mut ends = vec![false; states];
    let mut waiting = graph.good;
    while let Some(at) = waiting.pop() {
        if !std::mem::replace(&mut ends[at as usize], true) {
            waiting.extend(&graph.before[at as usize]);
        }
    }
    Reached { states, stuck: ends.iter().filter(|ends| !**ends).count() }
}

impl Graph {
    fn of(protocol: &Protocol) -> Self {
        let mut graph = Self { before: Vec::new(), good: Vec::new() };
        let mut known: HashMap<u64, u32> = HashMap::new();
        let mut waiting: Vec<(u32, State)> = Vec::new();
        let mut actions = Vec::new();
        for state in protocol.init_states() {
            graph.add(&mut known, &mut waiting, state);
        }
        while let Some((at, state)) = waiting.pop() {
            if protocol.is_good(&state) {
                graph.good.push(at);
            }
            protocol.actions(&state, &mut actions);
            for action in actions.drain(..) {
                let Some(next) = protocol.after(&state, action) else { continue };
                let to = graph.add(&mut known, &mut waiting, next);
                if is_due(&state, action) {
                    graph.before[to as usize].push(at);
                }
            }
        }
        graph
    }

    /// The number of a state, by a hash of 64 bits, as `stateright` does it.
    fn add(&mut self, known: &mut HashMap<u64, u32>, waiting: &mut Vec<(u32, State)>, state: State) -> u32 {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        let next = self.before.len() as u32;
        let at = *known.entry(hasher.finish()).or_insert(next);
        if at == next {
            self.before.push(Vec::new());
            waiting.push((at, state));
        }
        at
    }
}
