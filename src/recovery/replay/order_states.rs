//! The last state of each order in a source, kept small: 18 bytes for each order, because a log may have ten million.
//!
//! A hash map would need five times as much, and twice that while it grows. Here the states lie in sorted lists, and new
//! orders wait in a small map until there are enough of them to be merged in.

use std::collections::HashMap;

use uuid::Uuid;

use crate::domain::{OrderId, OrderStatus};

/// New orders that wait to be merged. Each merge copies all states.
const WAITING: usize = 131_072;

/// Which list an id is in is decided by the last byte of an id, which is random.
const LISTS: usize = 256;

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

/// An id and its packed state.
type Slot = ([u8; 16], [u8; 2]);

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

    pub(super) fn get(&self, id: OrderId) -> Option<OrderState> {
        if let Some(state) = self.waiting.get(&id) {
            return Some(*state);
        }
        let list = self.lists.get(list_of(id))?;
        let at = list.binary_search_by(|(known, _)| known.cmp(id.uuid().as_bytes())).ok()?;
        list.get(at).map(|(_, packed)| OrderState::unpack(*packed))
    }

    pub(super) fn set(&mut self, id: OrderId, state: OrderState) {
        if let Some(list) = self.lists.get_mut(list_of(id))
            && let Ok(at) = list.binary_search_by(|(known, _)| known.cmp(id.uuid().as_bytes()))
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
            if let Some(list) = new.get_mut(list_of(id)) {
                list.push((id.uuid().into_bytes(), state.pack()));
            }
        }
        for (list, mut new) in self.lists.iter_mut().zip(new) {
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

fn list_of(id: OrderId) -> usize {
    let bytes = Uuid::into_bytes(id.uuid());
    bytes.last().map_or(0, |last| usize::from(*last) % LISTS)
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
        assert_eq!(size_of::<Slot>(), 18);
        let highest = OrderState { version: HIGHEST_VERSION, ..OrderState::ACCEPTED };
        assert_eq!(OrderState::unpack(highest.pack()), highest);
    }
}
