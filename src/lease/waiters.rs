//! Who in this process waits for which name. A wake-up goes to one waiter of a name, the first that sleeps. A waiter
//! that was woken and leaves without the lease passes the wake-up on, so none is lost wherever a waiting future is
//! dropped.
//!
//! Pure: it knows neither Redis nor time. `tests/races` compiles it a second time.

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker};

use super::sync::{Arc, Mutex};

#[derive(Clone, Default)]
pub(super) struct Waiters {
    scopes: Arc<Mutex<HashMap<String, Names>>>,
}

/// The line of each name, in order of arrival.
type Names = HashMap<String, VecDeque<Slot>>;

struct Slot {
    id: u64,
    state: State,
}

enum State {
    /// Until woken.
    Asleep(Option<Waker>),
    /// It must try; it owns the wake-up until it sleeps again. `again`: another wake-up came while it was awake. Its
    /// try may have been just too early, so it must try once more before it sleeps.
    Awake { again: bool },
}

/// A place in the line of one name. A dropped waiter leaves the line and passes on the wake-up that it owns.
pub(super) struct Waiter {
    all: Waiters,
    scope: String,
    name: String,
    id: u64,
    satisfied: bool,
}

impl Waiters {
    /// The newcomer is awake: it must try once more before it sleeps, because the name may have become free before
    /// it joined the line.
    pub(super) fn enter(&self, scope: &str, name: &str) -> Waiter {
        self.locked(|scopes| {
            let line = scopes.entry(scope.to_owned()).or_default().entry(name.to_owned()).or_default();
            let id = line.back().map_or(0, |last| last.id + 1);
            line.push_back(Slot { id, state: State::Awake { again: false } });
            Waiter { all: self.clone(), scope: scope.to_owned(), name: name.to_owned(), id, satisfied: false }
        })
    }

    /// The name is free: wakes the first sleeper of its line. If nobody sleeps, the first in line must try again.
    pub(super) fn wake(&self, scope: &str, name: &str) {
        let waker = self.locked(|scopes| {
            let line = scopes.get_mut(scope)?.get_mut(name)?;
            let sleeper = line.iter().position(|slot| matches!(slot.state, State::Asleep(_)));
            let slot = line.get_mut(sleeper.unwrap_or(0))?;
            let again = sleeper.is_none();
            match std::mem::replace(&mut slot.state, State::Awake { again }) {
                State::Asleep(waker) => waker,
                State::Awake { .. } => None,
            }
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes one waiter of each name of the scope, because messages may have been missed.
    pub(super) fn wake_scope(&self, scope: &str) {
        let names: Vec<String> = self
            .locked(|scopes| scopes.get(scope).map(|names| names.keys().cloned().collect()))
            .unwrap_or_default();
        for name in names {
            self.wake(scope, &name);
        }
    }

    /// The scopes in which somebody waits.
    pub(super) fn scopes(&self) -> Vec<String> {
        self.locked(|scopes| scopes.keys().cloned().collect())
    }

    pub(super) fn len(&self) -> usize {
        self.locked(|scopes| scopes.values().flat_map(HashMap::values).map(VecDeque::len).sum())
    }

    fn locked<T>(&self, work: impl FnOnce(&mut HashMap<String, Names>) -> T) -> T {
        work(&mut self.scopes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl Waiter {
    pub(super) fn waits_for(&self, name: &str) -> bool {
        self.name == name
    }

    /// Falls asleep, and returns when woken. If the future is dropped halfway, the waiter is still in the line and
    /// owns the wake-up that came in the meantime.
    pub(super) async fn woken(&mut self) {
        self.in_line(|slot| {
            slot.state = match slot.state {
                State::Awake { again: true } => State::Awake { again: false },
                _ => State::Asleep(None),
            }
        });
        std::future::poll_fn(|context| self.poll_woken(context)).await;
    }

    /// It is about to try without having been woken: from now on it owns any wake-up that comes.
    pub(super) fn wakes_by_itself(&mut self) {
        self.in_line(|slot| {
            if let State::Asleep(_) = slot.state {
                slot.state = State::Awake { again: false };
            }
        });
    }

    fn poll_woken(&self, context: &mut Context<'_>) -> Poll<()> {
        self.in_line(|slot| match &mut slot.state {
            State::Awake { .. } => Poll::Ready(()),
            State::Asleep(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .unwrap_or(Poll::Ready(()))
    }

    /// Leaves the line with the wake-up used up: only a later one is passed on.
    pub(super) fn satisfied(mut self) {
        self.satisfied = true;
    }

    fn in_line<T>(&self, work: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.all.locked(|scopes| {
            let line = scopes.get_mut(&self.scope)?.get_mut(&self.name)?;
            line.iter_mut().find(|slot| slot.id == self.id).map(work)
        })
    }

    /// Leaves the line, and returns the state in which it was.
    fn leave(&self) -> Option<State> {
        self.all.locked(|scopes| {
            let names = scopes.get_mut(&self.scope)?;
            let line = names.get_mut(&self.name)?;
            let at = line.iter().position(|slot| slot.id == self.id)?;
            let slot = line.remove(at)?;
            if line.is_empty() {
                names.remove(&self.name);
            }
            if names.is_empty() {
                scopes.remove(&self.scope);
            }
            Some(slot.state)
        })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let pass_on = match self.leave() {
            Some(State::Awake { again }) => again || !self.satisfied,
            _ => false,
        };
        if pass_on {
            self.all.wake(&self.scope, &self.name);
        }
    }
}
