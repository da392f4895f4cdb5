//! What the watchdog has to look at, and when. An entry is either due at some time or in the hands
//! of the watchdog; whoever releases a lease takes its entry off the list first, and then nothing
//! puts it back: no renewal outlives the release.
//!
//! Pure: it knows neither Redis nor the clock. Compiled a second time by `tests/races`.

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
    /// `None` while the watchdog has it in hand.
    at: Option<Instant>,
}

/// The number of an entry. Never given twice.
pub(super) type Place = u64;

impl<T> Default for Watchlist<T> {
    fn default() -> Self {
        let list = List { next: 0, entries: HashMap::new(), due: BTreeSet::new() };
        Self { list: Mutex::new(list) }
    }
}

impl<T> Watchlist<T> {
    /// The second answer is whether this is now the first that is due.
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

    /// Those that are due go into the hands of the watchdog, which gives each back with
    /// [`Watchlist::again`] or takes it off with [`Watchlist::leave`].
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

    /// To be looked at again then. `false` where the entry has left meanwhile; it stays away.
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

    /// Takes the entry off for good. `false` where it had left already.
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
