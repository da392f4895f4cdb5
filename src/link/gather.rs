//! Batching: items that wait at the same time are handled together, because a call costs about as much as its
//! contents. A lone item goes at once; after a crowd, the next batch waits a moment for more.

use std::sync::Arc;
use std::time::Duration;
use std::vec::IntoIter;

use futures_util::StreamExt as _;
use futures_util::stream::{Buffered, Collect, Iter};
use tokio::sync::{Semaphore, mpsc};

/// A batch of this many items or more is a crowd.
const CROWD: usize = 8;

/// How long a batch after a crowd waits for more items: one tick of the runtime's timer.
const MOMENT: Duration = Duration::from_millis(1);

/// Takes items from a channel in batches.
#[derive(Debug, Default)]
pub struct Gather {
    /// The last batch was a crowd.
    crowded: bool,
}

impl Gather {
    /// Waits for one item, then takes up to `most` that are there. After a crowd it waits a moment for more. Empty
    /// when the channel has ended.
    pub async fn next<T>(&mut self, inbox: &mut mpsc::Receiver<T>, most: usize) -> Vec<T> {
        let mut together = Vec::new();
        if inbox.recv_many(&mut together, most).await == 0 {
            return together;
        }
        if self.crowded && together.len() < most {
            tokio::time::sleep(MOMENT).await;
            while together.len() < most
                && let Ok(next) = inbox.try_recv()
            {
                together.push(next);
            }
        }
        self.crowded = together.len() >= CROWD;
        together
    }
}

/// Runs `work` on batches of up to `most` items from `inbox`, `at_once` batches at a time. Returns when the channel
/// has ended; batches under way continue.
pub async fn work_together<T, F>(
    mut inbox: mpsc::Receiver<T>,
    most: usize,
    at_once: usize,
    work: impl Fn(Vec<T>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(at_once));
    let mut gather = Gather::default();
    while let Ok(place) = places.clone().acquire_owned().await {
        let together = gather.next(&mut inbox, most).await;
        if together.is_empty() {
            return;
        }
        let work = work(together);
        tokio::spawn(async move {
            work.await;
            drop(place);
        });
    }
}

/// Concurrent calls of one caller to a server: they share a few round trips and leave room for other callers.
const CALLS_AT_ONCE: usize = 32;

/// Runs `calls` concurrently and returns their answers in order. One call per sale, in sequence, would wait for the
/// server's disk each time.
///
/// The return type is spelled out, because an `impl Future` would capture the type of `calls`, whose closures
/// cannot always move into a task.
pub fn call_together<F: Future>(
    calls: impl IntoIterator<Item = F>,
) -> Collect<Buffered<Iter<IntoIter<F>>>, Vec<F::Output>> {
    let calls: Vec<F> = calls.into_iter().collect();
    futures_util::stream::iter(calls).buffered(CALLS_AT_ONCE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lone_item_does_not_wait_and_a_batch_after_a_crowd_does() {
        let (send, mut inbox) = mpsc::channel(1_000);
        let mut gather = Gather::default();
        send.try_send(0).expect("room");
        // It is there without any waiting.
        let lone = gather.next(&mut inbox, 64);
        assert_eq!(futures_util::FutureExt::now_or_never(lone), Some(vec![0]));
        for nth in 0..CROWD {
            send.try_send(nth).expect("room");
        }
        assert_eq!(gather.next(&mut inbox, 64).await.len(), CROWD);
        send.try_send(0).expect("room");
        let late = send.clone();
        let mut next = Box::pin(gather.next(&mut inbox, 64));
        assert_eq!(futures_util::FutureExt::now_or_never(next.as_mut()), None, "it waits for more");
        late.try_send(1).expect("room");
        assert_eq!(next.await, [0, 1]);
        for nth in 0..100 {
            send.try_send(nth).expect("room");
        }
        assert_eq!(gather.next(&mut inbox, 64).await.len(), 64, "never more than the most");
        drop((send, late));
        assert_eq!(gather.next(&mut inbox, 64).await.len(), 36);
        assert!(gather.next(&mut inbox, 64).await.is_empty(), "the end");
    }
}
