//! When the watchdog looks at which entry. An entry is either due at some time or checked out to the watchdog. A
//! release takes the entry off the list first, and nothing puts it back after that: no renewal outlives the release.
//!
//! Pure: it knows neither Redis nor the clock. `tests/races` compiles it a second time.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use super::sync::{Arc, Mutex};

pub(super) struct Watchlist<T> {
    list: Mutex<List<T>>,
}

struct List<T> {
    next: u64,
    entries: HashMap<u64, Entry<T>>,
    due: BTreeSet<(Instant, u64)>,
}

struct Entry<T> {
    item: Arc<T>,
    /// `None` while the watchdog has it checked out.
    at: Option<Instant>,
}

/// The number of an entry. Numbers are never reused.
pub(super) type Place = u64;

impl<T> Default for Watchlist<T> {
    fn default() -> Self {
        let list = List { next: 0, entries: HashMap::new(), due: BTreeSet::new() };
        Self { list: Mutex::new(list) }
    }
}

impl<T> Watchlist<T> {
    /// Adds an entry that is due at `at`. The second result says whether it is now the first to become due.
    pub(super) fn enter(&self, item: Arc<T>, at: Instant) -> (Place, bool) {
        self.locked(|list| {
            let place = list.next;
            list.next += 1;
            list.entries.insert(place, Entry { item, at: Some(at) });
            list.due.insert((at, place));
            (place, list.due.first() == Some(&(at, place)))
        })
    }

    /// When the first entry is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.locked(|list| list.due.first().map(|(at, _)| *at))
    }

    /// Checks out the entries that are due. The watchdog gives each back with [`Watchlist::again`] or takes it off
    /// with [`Watchlist::leave`].
    pub(super) fn take_due(&self, now: Instant) -> Vec<(Place, Arc<T>)> {
        self.locked(|list| {
            let mut due = Vec::new();
            while let Some((at, place)) = list.due.first().copied().filter(|(at, _)| *at <= now) {
                list.due.remove(&(at, place));
                if let Some(entry) = list.entries.get_mut(&place) {
                    entry.at = None;
                    due.push((place, entry.item.clone()));
                }
            }
            due
        })
    }

    /// Makes the entry due at `at`. `false` if it has left the list in the meantime; it stays away.
    pub(super) fn again(&self, place: Place, at: Instant) -> bool {
        self.locked(|list| {
            let Some(entry) = list.entries.get_mut(&place) else { return false };
            if let Some(before) = entry.at.replace(at) {
                list.due.remove(&(before, place));
            }
            list.due.insert((at, place));
            true
        })
    }

    /// Takes the entry off for good. `false` if it had already left.
    pub(super) fn leave(&self, place: Place) -> bool {
        self.locked(|list| {
            let Some(entry) = list.entries.remove(&place) else { return false };
            if let Some(at) = entry.at {
                list.due.remove(&(at, place));
            }
            true
        })
    }

    pub(super) fn len(&self) -> usize {
        self.locked(|list| list.entries.len())
    }

    fn locked<R>(&self, work: impl FnOnce(&mut List<T>) -> R) -> R {
        work(&mut self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}
