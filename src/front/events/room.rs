//! Room for streams of events: each takes a connection and some memory for as long as its client likes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::UserId;

/// Streams of one buyer, or one buyer could take all the room.
const PER_BUYER: usize = 16;

/// The streams of this process, bounded in all, for strangers and for each buyer.
pub struct StreamRoom {
    all: Arc<Semaphore>,
    /// What strangers may take: without it, they could keep every buyer out.
    strangers: Arc<Semaphore>,
    buyers: Arc<Buyers>,
}

#[derive(Default)]
struct Buyers(Mutex<HashMap<UserId, usize>>);

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::front) enum NoRoom {
    /// This front has as many streams as it may have.
    Front,
    /// The buyer has.
    Buyer,
}

impl StreamRoom {
    /// At most this many streams in all, of which a quarter is for those with a token.
    pub fn new(most: usize) -> Self {
        let strangers = Arc::new(Semaphore::new(most - most / 4));
        Self { all: Arc::new(Semaphore::new(most)), strangers, buyers: Arc::default() }
    }

    /// Room for a stream that anybody may read, until it is dropped.
    pub(in crate::front) fn for_anybody(&self) -> Result<Open, NoRoom> {
        let room = self.strangers.clone().try_acquire_owned().map_err(|_| NoRoom::Front)?;
        self.open(None, Some(room))
    }

    /// Room for a stream of an operator, until it is dropped.
    pub(in crate::front) fn for_operator(&self) -> Result<Open, NoRoom> {
        self.open(None, None)
    }

    /// Room for a stream of this buyer, until it is dropped.
    pub(in crate::front) fn for_buyer(&self, buyer: &UserId) -> Result<Open, NoRoom> {
        let counted = self.buyers.enter(buyer).ok_or(NoRoom::Buyer)?;
        self.open(Some(counted), None)
    }

    fn open(&self, buyer: Option<Counted>, stranger: Option<OwnedSemaphorePermit>) -> Result<Open, NoRoom> {
        let room = self.all.clone().try_acquire_owned().map_err(|_| NoRoom::Front)?;
        metrics::gauge!("doorbuster_event_streams").increment(1);
        Ok(Open { _room: room, _stranger: stranger, _buyer: buyer })
    }
}

/// An open stream, in the gauge and in the bounds.
pub(in crate::front) struct Open {
    _room: OwnedSemaphorePermit,
    _stranger: Option<OwnedSemaphorePermit>,
    _buyer: Option<Counted>,
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!("doorbuster_event_streams").decrement(1);
    }
}

/// One stream of a buyer.
struct Counted {
    buyers: Arc<Buyers>,
    buyer: UserId,
}

impl Buyers {
    fn enter(self: &Arc<Self>, buyer: &UserId) -> Option<Counted> {
        let mut counts = self.counts();
        let count = counts.entry(buyer.clone()).or_default();
        if *count >= PER_BUYER {
            return None;
        }
        *count += 1;
        Some(Counted { buyers: self.clone(), buyer: buyer.clone() })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<UserId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.buyers.counts();
        if let Some(count) = counts.get_mut(&self.buyer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.buyer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_buyer_takes_the_room_of_the_others() {
        let room = StreamRoom::new(PER_BUYER + 1);
        let (ada, bob): (UserId, UserId) = ("ada".parse().unwrap(), "bob".parse().unwrap());
        let mut streams: Vec<Open> = (0..PER_BUYER).map(|_| room.for_buyer(&ada).unwrap()).collect();
        assert_eq!(room.for_buyer(&ada).err(), Some(NoRoom::Buyer));
        let of_bob = room.for_buyer(&bob).unwrap();
        assert_eq!(room.for_anybody().err(), Some(NoRoom::Front));
        streams.pop();
        streams.push(room.for_buyer(&ada).unwrap());
        drop((streams, of_bob));
        assert!(room.buyers.counts().is_empty(), "who has no stream is forgotten");
    }

    #[test]
    fn strangers_leave_room_for_buyers() {
        let room = StreamRoom::new(8);
        let of_strangers: Vec<Open> = (0..6).map(|_| room.for_anybody().unwrap()).collect();
        assert_eq!(room.for_anybody().err(), Some(NoRoom::Front));
        let buyers: Vec<UserId> = (0..2).map(|nth| format!("user{nth}").parse().unwrap()).collect();
        let of_buyers: Vec<Open> = buyers.iter().map(|buyer| room.for_buyer(buyer).unwrap()).collect();
        assert_eq!(room.for_buyer(&"late".parse().unwrap()).err(), Some(NoRoom::Front));
        drop((of_strangers, of_buyers));
        assert!(room.for_anybody().is_ok());
    }
}
