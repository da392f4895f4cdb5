//! How much goes into one transaction. A database that answers slowly may not get a full batch done within the time limit
//! of a transaction, and the replay would never get any further.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Orders or payments in one transaction, as long as it is done in time.
pub(super) const BATCH: usize = 800;

/// The size of the next batch. Concurrent transactions share it.
#[derive(Debug)]
pub(super) struct BatchSize {
    most: usize,
    now: AtomicUsize,
}

impl BatchSize {
    pub(super) fn new(most: usize) -> Self {
        Self { most, now: AtomicUsize::new(most) }
    }

    /// At least 1.
    pub(super) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// A batch of `size` was not done in time: the next one has half of it.
    pub(super) fn shrink_from(&self, size: usize) {
        self.now.fetch_min((size / 2).max(1), Ordering::Relaxed);
    }

    /// A batch of `size` was done: the next one may have an eighth more. Larger steps would soon run out of time again.
    pub(super) fn grow_from(&self, size: usize) {
        if size >= self.now() {
            self.now.fetch_max((size + size / 8 + 1).min(self.most), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_shrink_at_once_and_grow_slowly() {
        let size = BatchSize::new(BATCH);
        size.grow_from(800);
        assert_eq!(size.now(), 800);
        // Four transactions at once run out of time.
        (0..4).for_each(|_| size.shrink_from(800));
        assert_eq!(size.now(), 400);
        size.grow_from(400);
        assert_eq!(size.now(), 451);
        // The last batch of a pass is small and says nothing about larger ones.
        size.grow_from(3);
        assert_eq!(size.now(), 451);
        (0..20).for_each(|_| size.shrink_from(size.now()));
        assert_eq!(size.now(), 1);
        (0..100).for_each(|_| size.grow_from(size.now()));
        assert_eq!(size.now(), 800);
    }
}
