//! Batching by key: items of one key that wait at the same time are handled together, and no key waits for another.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Items that wait, by key; clones share them.
pub struct KeyedBatches<K, T> {
    keys: Arc<Mutex<HashMap<K, Queue<T>>>>,
    most: usize,
    at_once: usize,
}

/// What waits for one key.
struct Queue<T> {
    items: VecDeque<T>,
    /// Batches of this key that are being handled.
    running: usize,
}

impl<K, T> Clone for KeyedBatches<K, T> {
    fn clone(&self) -> Self {
        Self { keys: self.keys.clone(), most: self.most, at_once: self.at_once }
    }
}

impl<K: Eq + Hash + Clone + Send + 'static, T: Send + 'static> KeyedBatches<K, T> {
    /// Batches of up to `most` items, and of each key up to `at_once` of them at a time.
    pub fn new(most: usize, at_once: usize) -> Self {
        Self { keys: Arc::default(), most, at_once }
    }

    /// Has `work` handle the item. It goes at once if fewer than `at_once` batches of its key are being handled, and
    /// otherwise with whatever else waits when one of them is done. If `work` panics, its items are dropped, and the others
    /// of its key are handled or dropped.
    pub fn put<F>(&self, key: K, item: T, work: impl Fn(Vec<T>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let mut keys = self.lock();
        let queue = keys.entry(key.clone()).or_insert_with(|| Queue { items: VecDeque::new(), running: 0 });
        queue.items.push_back(item);
        if queue.running == self.at_once {
            return;
        }
        queue.running += 1;
        let mut runner = Runner { batches: self.clone(), key, has_left: false };
        tokio::spawn(async move {
            while let Some(batch) = runner.next() {
                work(batch).await;
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Queue<T>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handles batches of one key until none is left.
struct Runner<K: Eq + Hash + Clone + Send + 'static, T: Send + 'static> {
    batches: KeyedBatches<K, T>,
    key: K,
    has_left: bool,
}

impl<K: Eq + Hash + Clone + Send + 'static, T: Send + 'static> Runner<K, T> {
    /// The next batch. With none left, the runner has left its queue: an item that comes later starts another one.
    fn next(&mut self) -> Option<Vec<T>> {
        let mut keys = self.batches.lock();
        let queue = keys.get_mut(&self.key)?;
        let most = self.batches.most.min(queue.items.len());
        let batch: Vec<T> = queue.items.drain(..most).collect();
        if !batch.is_empty() {
            return Some(batch);
        }
        leave(&mut keys, &self.key);
        self.has_left = true;
        None
    }
}

impl<K: Eq + Hash + Clone + Send + 'static, T: Send + 'static> Drop for Runner<K, T> {
    fn drop(&mut self) {
        if !self.has_left {
            leave(&mut self.batches.lock(), &self.key);
        }
    }
}

/// Takes one runner from a queue. The last one removes it, with what waits there.
fn leave<K: Eq + Hash, T>(keys: &mut HashMap<K, Queue<T>>, key: &K) {
    if let Some(queue) = keys.get_mut(key) {
        queue.running -= 1;
        if queue.running == 0 {
            keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn items_of_a_busy_key_go_together_and_another_key_does_not_wait() {
        let batches = KeyedBatches::new(4, 1);
        let (done, mut handled) = mpsc::unbounded_channel();
        let (open, gate) = tokio::sync::watch::channel(false);
        let put = |key: &'static str, item: u32| {
            let (done, gate) = (done.clone(), gate.clone());
            batches.put(key, item, move |batch| {
                let (done, mut gate) = (done.clone(), gate.clone());
                async move {
                    if key == "a" {
                        let _ = gate.wait_for(|open| *open).await;
                    }
                    let _ = done.send((key, batch));
                }
            });
        };
        put("a", 0);
        tokio::task::yield_now().await;
        for item in 1..=6 {
            put("a", item);
        }
        put("b", 7);
        assert_eq!(handled.recv().await, Some(("b", vec![7])), "no key waits for another");
        open.send_replace(true);
        assert_eq!(handled.recv().await, Some(("a", vec![0])), "a lone item goes at once");
        assert_eq!(handled.recv().await, Some(("a", vec![1, 2, 3, 4])), "never more than the most");
        assert_eq!(handled.recv().await, Some(("a", vec![5, 6])));
        while !batches.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        put("a", 8);
        assert_eq!(handled.recv().await, Some(("a", vec![8])), "a key comes again after it was idle");
    }

    #[tokio::test]
    async fn a_panic_drops_its_items_and_the_key_goes_on() {
        let batches = KeyedBatches::new(4, 1);
        let put = |fails: bool| {
            let (answer, answered) = tokio::sync::oneshot::channel();
            batches.put("a", answer, move |batch: Vec<tokio::sync::oneshot::Sender<()>>| async move {
                assert!(!fails, "planted");
                for answer in batch {
                    let _ = answer.send(());
                }
            });
            answered
        };
        assert!(put(true).await.is_err());
        while !batches.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(put(false).await.is_ok());
    }
}
