//! The last state of each order in a source, kept small: 12 bytes for each order, because a log may have ten million.
//!
//! A hash map would need five times as much, and twice that while it grows. Here the states lie in sorted lists, and new
//! orders wait in a small map until there are enough of them to be merged in.

use std::collections::HashMap;

use uuid::Uuid;

use crate::domain::{OrderId, OrderStatus};

/// New orders that wait to be merged. Each merge copies all states.
const WAITING: usize = 131_072;

/// The list of an id is the number in its last two bytes, which are random. So its slot need not have them.
const LISTS: usize = 65_536;

/// The highest version that a state can hold. Four changes lead from the first state of an order to its last.
pub(super) const HIGHEST_VERSION: i32 = 4_095;

/// What the source says of one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OrderState {
    /// The highest version of its row; 0 if only its acceptance is known.
    pub(super) version: i32,
    /// The status at that version.
    pub(super) status: OrderStatus,
    /// Whether a later pass has decided on it.
    pub(super) is_decided: bool,
}

impl OrderState {
    pub(super) const ACCEPTED: Self = Self { version: 0, status: OrderStatus::Accepted, is_decided: false };

    fn pack(self) -> [u8; 2] {
        let version = u16::try_from(self.version.clamp(0, HIGHEST_VERSION)).unwrap_or_default();
        let status = OrderStatus::ALL.iter().position(|status| *status == self.status).unwrap_or_default();
        (version << 4 | (status as u16) << 1 | u16::from(self.is_decided)).to_be_bytes()
    }

    fn unpack(packed: [u8; 2]) -> Self {
        let packed = u16::from_be_bytes(packed);
        let status = OrderStatus::ALL.get(usize::from(packed >> 1 & 7)).copied();
        Self {
            version: i32::from(packed >> 4),
            status: status.unwrap_or(OrderStatus::Accepted),
            is_decided: packed & 1 == 1,
        }
    }
}

/// An id without its first four bytes and its last two, and its packed state. The first four say in which minute the order was
/// accepted. What is left of a UUIDv7, the list included, is 74 random bits and 16 of the millisecond: of ten million orders
/// two are alike in them once in twenty-five trillion replays.
type Slot = (Rest, [u8; 2]);
type Rest = [u8; 10];

/// The states of many orders, by their ids.
pub(super) struct OrderStates {
    /// Each sorted by id.
    lists: Vec<Vec<Slot>>,
    waiting: HashMap<OrderId, OrderState>,
}

impl Default for OrderStates {
    fn default() -> Self {
        Self { lists: vec![Vec::new(); LISTS], waiting: HashMap::new() }
    }
}

impl OrderStates {
    pub(super) fn len(&self) -> u64 {
        (self.lists.iter().map(Vec::len).sum::<usize>() + self.waiting.len()) as u64
    }

    pub(super) fn undecided(&self) -> u64 {
        let merged = self.lists.iter().flatten().map(|(_, packed)| OrderState::unpack(*packed));
        let states = merged.chain(self.waiting.values().copied());
        states.filter(|state| !state.is_decided).count() as u64
    }

    pub(super) fn get(&self, id: OrderId) -> Option<OrderState> {
        if let Some(state) = self.waiting.get(&id) {
            return Some(*state);
        }
        let (list, rest) = place_of(id);
        let list = self.lists.get(list)?;
        let at = list.binary_search_by(|(known, _)| known.cmp(&rest)).ok()?;
        list.get(at).map(|(_, packed)| OrderState::unpack(*packed))
    }

    pub(super) fn set(&mut self, id: OrderId, state: OrderState) {
        let (list, rest) = place_of(id);
        if let Some(list) = self.lists.get_mut(list)
            && let Ok(at) = list.binary_search_by(|(known, _)| known.cmp(&rest))
            && let Some((_, packed)) = list.get_mut(at)
        {
            *packed = state.pack();
            return;
        }
        self.waiting.insert(id, state);
        if self.waiting.len() >= WAITING {
            self.merge();
        }
    }

    fn merge(&mut self) {
        let mut new: Vec<Vec<Slot>> = vec![Vec::new(); LISTS];
        for (id, state) in self.waiting.drain() {
            let (list, rest) = place_of(id);
            if let Some(list) = new.get_mut(list) {
                list.push((rest, state.pack()));
            }
        }
        for (list, mut new) in self.lists.iter_mut().zip(new) {
            if new.is_empty() {
                continue;
            }
            new.sort_unstable();
            let mut merged = Vec::with_capacity(list.len() + new.len());
            let mut old = std::mem::take(list).into_iter().peekable();
            for slot in new {
                while let Some(before) = old.next_if(|before| before.0 < slot.0) {
                    merged.push(before);
                }
                merged.push(slot);
            }
            merged.extend(old);
            *list = merged;
        }
    }
}

/// The list of an id, and what its slot has of it.
fn place_of(id: OrderId) -> (usize, Rest) {
    let [_, _, _, _, rest @ .., high, low] = Uuid::into_bytes(id.uuid());
    (usize::from(high) << 8 | usize::from(low), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_as_it_was_written_whether_it_was_merged_or_waits() {
        let ids: Vec<OrderId> = (0..2 * WAITING + 1_000).map(|_| OrderId::generate()).collect();
        let state = |nth: usize| OrderState {
            version: (nth % 5) as i32,
            status: OrderStatus::ALL[nth % OrderStatus::ALL.len()],
            is_decided: nth.is_multiple_of(3),
        };
        let mut states = OrderStates::default();
        for (nth, id) in ids.iter().enumerate() {
            assert_eq!(states.get(*id), None);
            states.set(*id, state(nth));
        }
        for (nth, id) in ids.iter().enumerate() {
            assert_eq!(states.get(*id), Some(state(nth)), "{nth}");
            states.set(*id, state(nth + 1));
        }
        assert_eq!(states.len(), ids.len() as u64);
        for (nth, id) in ids.iter().enumerate() {
            assert_eq!(states.get(*id), Some(state(nth + 1)), "{nth}");
        }
        assert_eq!(states.get(OrderId::generate()), None);
        assert_eq!(size_of::<Slot>(), 12);
        let highest = OrderState { version: HIGHEST_VERSION, ..OrderState::ACCEPTED };
        assert_eq!(OrderState::unpack(highest.pack()), highest);
    }
}
