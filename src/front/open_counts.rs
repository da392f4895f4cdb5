//! How many connections or streams each client has open, up to a bound.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The counts of the keys that have any.
pub(super) struct OpenCounts<K> {
    most: usize,
    counts: Mutex<HashMap<K, usize>>,
}

/// One of a key, which no longer counts once this is dropped.
pub(super) struct Counted<K: Eq + Hash> {
    all: Arc<OpenCounts<K>>,
    key: K,
}

impl<K> OpenCounts<K> {
    /// At most this many for each key.
    pub(super) fn new(most: usize) -> Self {
        Self { most, counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no key has any.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.counts().is_empty()
    }
}

impl<K: Clone + Eq + Hash> OpenCounts<K> {
    /// Counts one more of this key; `None` above the bound.
    pub(super) fn enter(self: &Arc<Self>, key: K) -> Option<Counted<K>> {
        let mut counts = self.counts();
        let count = counts.entry(key.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Counted { all: self.clone(), key })
    }
}

impl<K: Eq + Hash> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut counts = self.all.counts();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}
