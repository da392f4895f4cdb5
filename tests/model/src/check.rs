//! Runs a configuration to its end.

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::config::Config;
use crate::model::Protocol;
use crate::trace::written;

/// What a run has found.
#[derive(Debug)]
pub struct Found {
    /// Distinct states.
    pub states: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
    /// Whether it has seen all states, or stopped at a violation, and not at the time limit.
    pub done: bool,
    /// How long it took.
    pub took: Duration,
    /// Violated properties, each with its trace.
    pub violated: Vec<(&'static str, String)>,
}

/// Explores every state, or stops at the first violation or after `limit`.
pub fn run(config: Config, threads: usize, limit: Duration) -> Found {
    run_until(config, threads, limit, HasDiscoveries::Any)
}

/// Looks for a way to violate this property; others may be violated on the way.
pub fn find(config: Config, property: &'static str, limit: Duration) -> Found {
    run_until(config, 1, limit, HasDiscoveries::AnyOf([property].into()))
}

fn run_until(config: Config, threads: usize, limit: Duration, until: HasDiscoveries) -> Found {
    let begun = Instant::now();
    let checker = Protocol { config }.checker().threads(threads).finish_when(until).timeout(limit);
    let checker = checker.spawn_bfs().join();
    let found = checker.discoveries();
    let violated = found.into_iter().map(|(name, path)| (name, written(&path.into_vec()))).collect();
    Found {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        done: begun.elapsed() < limit,
        took: begun.elapsed(),
        violated,
    }
}
