//! The model as `stateright` sees it.

use stateright::{Model, Property};

use crate::action::Action;
use crate::config::Config;
use crate::properties;
use crate::state::{Kind, ORDERS, State, USERS, WORKERS};
use crate::steps::take;

/// The protocol within the bounds of a configuration.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// The bounds, and what is planted.
    pub config: Config,
}

impl Protocol {
    /// The state after a step; `None` if it is not possible or changes nothing.
    pub fn after(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        if !take(&mut next, &self.config, action) {
            return None;
        }
        next.normalise(&self.config);
        (next != *state).then_some(next)
    }

    /// Whether the system has something to do by itself.
    pub fn has_work(&self, state: &State) -> bool {
        let mut steps = Vec::with_capacity(64);
        self.actions(state, &mut steps);
        steps
            .into_iter()
            .filter(|action| is_due(state, *action))
            .any(|action| self.after(state, action).is_some())
    }
}

/// Whether the system does this step by itself, sooner or later.
pub fn is_due(state: &State, action: Action) -> bool {
    match action {
        // The provider repeats what was not answered.
        Action::Begin { kind: Kind::Pay, order } => state.paying[usize::from(order)],
        action => action.is_due(),
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut first = State::first(&self.config);
        first.normalise(&self.config);
        vec![first]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let orders = state.orders.iter().flatten().count().min(ORDERS) as u8;
        for user in 0..USERS as u8 {
            actions.extend((0..self.config.keys).map(|key| Action::Click { user, key }));
            actions.extend([Action::EndLease { user }, Action::FreeLease { user }, Action::Refuse { user }]);
        }
        for order in 0..orders {
            actions.extend([
                Action::Publish { order },
                Action::Confirm { order },
                Action::LoseConfirm { order },
            ]);
            actions.extend([Action::Sweep { order }, Action::WriteLog { order }, Action::Restore { order }]);
            actions.extend([
                Action::Answer { order },
                Action::ReadGate { order },
                Action::Duplicate { order },
            ]);
            let kinds = [Kind::Pay, Kind::Expire, Kind::Cancel, Kind::Return, Kind::Adopt];
            actions.extend(kinds.map(|kind| Action::Begin { kind, order }));
            actions.extend((0..WORKERS as u8).map(|worker| Action::Deliver { worker, order }));
        }
        for worker in 0..self.config.workers {
            actions.extend([
                Action::TakeLease { worker },
                Action::CheckLease { worker },
                Action::Commit { worker },
            ]);
            actions.extend([
                Action::Acknowledge { worker },
                Action::Settle { worker },
                Action::CrashWorker { worker },
            ]);
        }
        actions.extend([Action::CheckAct, Action::CommitAct, Action::FinishAct, Action::LoseReturn]);
        actions.extend([Action::RecordReturn, Action::ComparePlaces, Action::Compare, Action::FinishCompare]);
        actions.extend([Action::BeginRebuild, Action::Rebuild, Action::BeginReplay, Action::BeginLine]);
        actions.extend([Action::Restock, Action::ApplyRestock, Action::AnswerRestock, Action::Tick]);
        actions.extend([Action::BeginReading, Action::Read, Action::ReadRow, Action::CrashFront]);
        actions.extend([Action::CrashRecovery, Action::Purge, Action::SaveGate, Action::LoseGate]);
        actions.extend([Action::EmptyGate, Action::SaveDb, Action::LoseDb]);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.after(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all().into_iter().map(|(name, holds)| Property::always(name, holds)).collect()
    }
}
