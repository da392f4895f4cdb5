//! Room for streams of events: each takes a connection and some memory for as long as its client likes.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::UserId;
use crate::front::open_counts::{Counted, OpenCounts};

/// Streams of one buyer, or one buyer could take all the room.
const PER_BUYER: usize = 16;

/// The part of the room that the strangers of one address may take. A whole office shares an address, so each may have
/// at least as many streams as a buyer.
const PART_OF_AN_ADDRESS: usize = 8;

/// The streams of this process, bounded in all, for strangers, for each address of strangers, and for each buyer.
pub struct StreamRoom {
    all: Arc<Semaphore>,
    /// What strangers may take: without it, they could keep every buyer out.
    strangers: Arc<Semaphore>,
    addresses: Arc<OpenCounts<IpAddr>>,
    buyers: Arc<OpenCounts<UserId>>,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::front) enum NoRoom {
    /// This front has as many streams as it may have.
    Front,
    /// The buyer has.
    Buyer,
    /// The strangers of the address have.
    Address,
}

impl StreamRoom {
    /// At most this many streams in all, of which a quarter is for those with a token.
    pub fn new(most: usize) -> Self {
        let strangers = Arc::new(Semaphore::new(most - most / 4));
        let of_address = (most / PART_OF_AN_ADDRESS).max(PER_BUYER);
        Self {
            all: Arc::new(Semaphore::new(most)),
            strangers,
            addresses: Arc::new(OpenCounts::new(of_address)),
            buyers: Arc::new(OpenCounts::new(PER_BUYER)),
        }
    }

    /// Room for a stream that anybody may read, until it is dropped. Without an address, only all strangers together
    /// are bounded.
    pub(in crate::front) fn for_anybody(&self, address: Option<IpAddr>) -> Result<Open, NoRoom> {
        let counted =
            address.map(|address| self.addresses.enter(address).ok_or(NoRoom::Address)).transpose()?;
        let room = self.strangers.clone().try_acquire_owned().map_err(|_| NoRoom::Front)?;
        self.open(Whose::Stranger(room, counted))
    }

    /// Room for a stream of an operator, until it is dropped.
    pub(in crate::front) fn for_operator(&self) -> Result<Open, NoRoom> {
        self.open(Whose::Operator)
    }

    /// Room for a stream of this buyer, until it is dropped.
    pub(in crate::front) fn for_buyer(&self, buyer: &UserId) -> Result<Open, NoRoom> {
        let counted = self.buyers.enter(buyer.clone()).ok_or(NoRoom::Buyer)?;
        self.open(Whose::Buyer(counted))
    }

    fn open(&self, whose: Whose) -> Result<Open, NoRoom> {
        let room = self.all.clone().try_acquire_owned().map_err(|_| NoRoom::Front)?;
        metrics::gauge!("doorbuster_event_streams").increment(1);
        Ok(Open { _room: room, _whose: whose })
    }
}

/// An open stream, in the gauge and in the bounds.
pub(in crate::front) struct Open {
    _room: OwnedSemaphorePermit,
    _whose: Whose,
}

/// Whose bounds a stream counts in, until this is dropped.
#[expect(dead_code, reason = "held for what dropping it gives back")]
enum Whose {
    Operator,
    Buyer(Counted<UserId>),
    Stranger(OwnedSemaphorePermit, Option<Counted<IpAddr>>),
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!("doorbuster_event_streams").decrement(1);
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
        assert_eq!(room.for_anybody(None).err(), Some(NoRoom::Front));
        streams.pop();
        streams.push(room.for_buyer(&ada).unwrap());
        drop((streams, of_bob));
        assert!(room.buyers.is_empty(), "who has no stream is forgotten");
    }

    #[test]
    fn strangers_leave_room_for_buyers() {
        let room = StreamRoom::new(8);
        let of_strangers: Vec<Open> = (0..6).map(|_| room.for_anybody(None).unwrap()).collect();
        assert_eq!(room.for_anybody(None).err(), Some(NoRoom::Front));
        let buyers: Vec<UserId> = (0..2).map(|nth| format!("user{nth}").parse().unwrap()).collect();
        let of_buyers: Vec<Open> = buyers.iter().map(|buyer| room.for_buyer(buyer).unwrap()).collect();
        assert_eq!(room.for_buyer(&"late".parse().unwrap()).err(), Some(NoRoom::Front));
        drop((of_strangers, of_buyers));
        assert!(room.for_anybody(None).is_ok());
    }

    #[test]
    fn no_address_takes_the_room_of_the_other_strangers() {
        let room = StreamRoom::new(256);
        let (one, other): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let mut streams: Vec<Open> = (0..32).map(|_| room.for_anybody(Some(one)).unwrap()).collect();
        assert_eq!(room.for_anybody(Some(one)).err(), Some(NoRoom::Address));
        assert!(room.for_anybody(Some(other)).is_ok() && room.for_anybody(None).is_ok());
        streams.pop();
        streams.push(room.for_anybody(Some(one)).unwrap());
        drop(streams);
        assert!(room.addresses.is_empty(), "an address without a stream is forgotten");
    }
}
