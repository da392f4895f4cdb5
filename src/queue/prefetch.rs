//! How many messages the broker lends a consumer. The broker counts messages, and a message carries one order or a
//! hundred. What counts is orders: with too few a worker waits, and with too many each restart takes a whole backlog
//! along. So the number of messages follows the orders that they carry.

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Messages that the broker lends first. Many small messages soon use them up, and then it lends more.
const FIRST: usize = 16;

/// The messages that this process has taken and neither acknowledged nor dropped, and their orders.
#[derive(Default)]
struct Taken {
    messages: AtomicUsize,
    orders: AtomicUsize,
}

/// Counts a message as taken until it is dropped.
pub(super) struct Loan {
    taken: Arc<Taken>,
    orders: usize,
}

impl Loan {
    pub(super) fn amount(&self) -> Amount {
        Amount { messages: 1, orders: self.orders }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.taken.messages.fetch_sub(1, Ordering::Relaxed);
        self.taken.orders.fetch_sub(self.orders, Ordering::Relaxed);
    }
}

/// Messages, and the orders in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Messages.
    pub messages: usize,
    /// Orders in these messages.
    pub orders: usize,
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { messages: self.messages + other.messages, orders: self.orders + other.orders }
    }
}

/// What should change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The broker should lend so many messages more.
    Widen(u16),
    /// It should lend no more to the consumer that was added last.
    Narrow,
}

/// The limit of one connection.
pub(super) struct Prefetch {
    /// Orders that may be lent, about.
    orders: usize,
    /// The messages of each consumer, oldest first.
    consumers: Vec<u16>,
    taken: Arc<Taken>,
    /// The orders of a recent message, on average.
    mean: f64,
}

impl Prefetch {
    pub(super) fn new(orders: usize) -> Self {
        Self { orders, consumers: Vec::new(), taken: Arc::default(), mean: 1.0 }
    }

    /// The messages of the first consumer.
    pub(super) fn first(&self) -> u16 {
        u16::try_from(FIRST.min(self.orders).max(1)).unwrap_or(u16::MAX)
    }

    pub(super) fn widened(&mut self, messages: u16) {
        self.consumers.push(messages);
    }

    pub(super) fn narrowed(&mut self) {
        self.consumers.pop();
    }

    /// Records a message with this many orders, until the loan is dropped.
    pub(super) fn lend(&mut self, orders: usize) -> Loan {
        self.mean += (orders as f64 - self.mean) / 16.0;
        self.taken.messages.fetch_add(1, Ordering::Relaxed);
        self.taken.orders.fetch_add(orders, Ordering::Relaxed);
        Loan { taken: self.taken.clone(), orders }
    }

    fn capacity(&self) -> usize {
        self.consumers.iter().map(|messages| usize::from(*messages)).sum()
    }

    /// Whether the broker may lend more than has been taken.
    pub(super) fn has_room(&self) -> bool {
        self.taken.messages.load(Ordering::Relaxed) < self.capacity()
    }

    /// What should change now. `aside` is what the caller keeps and cannot work on: it does not count.
    pub(super) fn change(&self, aside: Amount) -> Option<Change> {
        let usable = self.capacity().saturating_sub(aside.messages);
        if self.consumers.len() > 1 && self.mean * usable as f64 > 2.0 * self.orders as f64 {
            return Some(Change::Narrow);
        }
        if self.has_room() {
            return None;
        }
        let orders = self.taken.orders.load(Ordering::Relaxed).saturating_sub(aside.orders);
        // At least the recent average, so that what is widened now is not narrowed at once.
        let mean = orders.div_ceil(usable.max(1)).max(self.mean.round() as usize).max(1);
        let room = (self.orders / mean).saturating_sub(usable);
        let step = room.min(usable.max(FIRST)).min(usize::from(u16::MAX));
        // A small step is not worth a consumer.
        (step > 0 && step * 4 >= usable).then(|| Change::Widen(u16::try_from(step).unwrap_or(u16::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes messages of this size until the broker has none to give, as a worker that acknowledges nothing does.
    fn take_all(prefetch: &mut Prefetch, orders: usize, aside: Amount) -> Vec<Loan> {
        let mut loans = Vec::new();
        for _ in 0..100_000 {
            if loans.len() < prefetch.capacity() {
                loans.push(prefetch.lend(orders));
            } else if let Some(Change::Widen(messages)) = prefetch.change(aside) {
                prefetch.widened(messages);
            } else {
                return loans;
            }
        }
        panic!("no end");
    }

    fn opened(orders: usize) -> Prefetch {
        let mut prefetch = Prefetch::new(orders);
        prefetch.widened(prefetch.first());
        prefetch
    }

    #[test]
    fn small_and_large_messages_carry_about_the_same_orders() {
        for size in [1, 3, 20, 128] {
            let loans = take_all(&mut opened(6_400), size, Amount::default());
            let orders = loans.len() * size;
            assert!((5_000..=6_400).contains(&orders) || size == 128, "{} of {size}", loans.len());
            assert!(orders >= 2_048, "{orders}");
        }
        assert_eq!(take_all(&mut opened(20), 1, Amount::default()).len(), 20);
        assert_eq!(take_all(&mut opened(1), 1, Amount::default()).len(), 1);
    }

    #[test]
    fn larger_messages_after_small_ones_narrow_it() {
        let mut prefetch = opened(6_400);
        drop(take_all(&mut prefetch, 1, Amount::default()));
        assert!(prefetch.capacity() > 5_000, "{}", prefetch.capacity());
        for _ in 0..200 {
            drop(prefetch.lend(128));
            if prefetch.change(Amount::default()) == Some(Change::Narrow) {
                prefetch.narrowed();
            }
        }
        assert!(prefetch.capacity() <= 128, "{}", prefetch.capacity());
    }

    #[test]
    fn what_is_set_aside_does_not_count() {
        let mut prefetch = opened(100);
        let kept = take_all(&mut prefetch, 1, Amount::default());
        assert_eq!(kept.len(), 100);
        let aside = Amount { messages: 100, orders: 100 };
        assert_eq!(prefetch.change(Amount::default()), None);
        let more = {
            let mut all = kept;
            while let Some(Change::Widen(messages)) = prefetch.change(aside) {
                prefetch.widened(messages);
                while all.len() < prefetch.capacity() {
                    all.push(prefetch.lend(1));
                }
            }
            all.len()
        };
        assert_eq!(more, 200);
    }
}
