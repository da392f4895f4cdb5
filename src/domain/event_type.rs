//! The types of events that endpoints of webhooks are given.

use std::fmt;
use std::str::FromStr;

use super::{Invalid, OrderStatus, SaleState};

/// Something that happened to a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SaleEvent {
    /// An operator opened it.
    Opened,
    /// It was paused.
    Paused,
    /// An operator let it sell again.
    Resumed,
    /// Nothing was left of any item.
    SoldOut,
    /// It ended for good.
    Closed,
    /// Its books did not balance.
    BooksBroken,
}

impl SaleEvent {
    /// Every event.
    pub const ALL: [SaleEvent; 6] =
        [Self::Opened, Self::Paused, Self::Resumed, Self::SoldOut, Self::Closed, Self::BooksBroken];

    /// What a change of state is, if it is an event. A sale whose gate is rebuilt is frozen meanwhile: nothing happened
    /// to it.
    pub fn of(from: SaleState, to: SaleState) -> Option<Self> {
        match (from, to) {
            (SaleState::Draft, SaleState::Open) => Some(Self::Opened),
            (SaleState::Open, SaleState::Paused) => Some(Self::Paused),
            (SaleState::Paused, SaleState::Open) => Some(Self::Resumed),
            (from, SaleState::Closed) if !from.has_ended() => Some(Self::Closed),
            _ => None,
        }
    }

    /// The name in JSON and in the database. No state of an order has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::SoldOut => "sold_out",
            Self::Closed => "closed",
            Self::BooksBroken => "books_broken",
        }
    }
}

/// The type of an event: `order.paid`, `sale.closed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// An order has reached this state.
    Order(OrderStatus),
    /// This happened to a sale.
    Sale(SaleEvent),
}

impl EventType {
    /// Every type. An order that was accepted has no row yet, so none is `order.accepted`.
    pub fn all() -> impl Iterator<Item = Self> {
        let orders = OrderStatus::ALL.into_iter().filter(|status| *status != OrderStatus::Accepted);
        orders.map(Self::Order).chain(SaleEvent::ALL.into_iter().map(Self::Sale))
    }

    /// The second half of the name, as the database has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Order(status) => status.as_str(),
            Self::Sale(event) => event.as_str(),
        }
    }

    /// The type with this second half.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|event| event.as_str() == name)
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self {
            Self::Order(_) => "order",
            Self::Sale(_) => "sale",
        };
        write!(f, "{family}.{}", self.as_str())
    }
}

/// The types that an endpoint is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTypes(Vec<EventType>);

impl EventTypes {
    /// Every type.
    pub fn all() -> Self {
        Self(EventType::all().collect())
    }

    /// Those of these names, separated by spaces, that this build knows. A later build knows the others.
    pub fn known(names: &str) -> Self {
        Self(
            EventType::all().filter(|event| names.split(' ').any(|name| name == event.to_string())).collect(),
        )
    }

    /// Whether this is every type.
    pub fn are_all(&self) -> bool {
        EventType::all().all(|event| self.has(event))
    }

    /// Whether this type is among them.
    pub fn has(&self, event: EventType) -> bool {
        self.0.contains(&event)
    }

    /// Their names, in a fixed order.
    pub fn names(&self) -> Vec<String> {
        EventType::all().filter(|event| self.has(*event)).map(|event| event.to_string()).collect()
    }
}

impl FromStr for EventTypes {
    type Err = Invalid;

    /// Names separated by spaces or commas; `order.*` and `sale.*` stand for every type that begins so.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        const INVALID: Invalid = Invalid {
            what: "the types of events",
            rule: "order.confirmed, order.paid, order.cancelled, order.expired, order.refunded, order.failed, order.*, \
                   sale.opened, sale.paused, sale.resumed, sale.sold_out, sale.closed, sale.books_broken or sale.*, \
                   with commas between them",
        };
        let mut types = Vec::new();
        for name in text.split([' ', ',']).filter(|name| !name.is_empty()) {
            let before = types.len();
            types.extend(EventType::all().filter(|event| {
                let full = event.to_string();
                full == name
                    || name
                        .strip_suffix('*')
                        .is_some_and(|family| full.starts_with(family) && family.ends_with('.'))
            }));
            if types.len() == before {
                return Err(INVALID);
            }
        }
        if types.is_empty() { Err(INVALID) } else { Ok(Self(types)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for event in EventType::all() {
            assert_eq!(EventType::named(event.as_str()), Some(event), "no two types share a second half");
            assert_eq!(event.to_string().parse::<EventTypes>().unwrap().names(), [event.to_string()]);
        }
        assert_eq!(EventType::named("accepted"), None);
        assert_eq!(EventTypes::known("order.paid sale.gone").names(), ["order.paid"]);
        assert!(EventTypes::known("sale.gone").names().is_empty());
        assert!("order.*, sale.*".parse::<EventTypes>().unwrap().are_all());
        let some: EventTypes = "sale.closed order.*".parse().unwrap();
        assert!(some.has(EventType::Sale(SaleEvent::Closed)) && !some.are_all());
        assert_eq!(some.names().join(" ").parse::<EventTypes>().unwrap().names(), some.names());
        for bad in ["", " ,", "order", "order.accepted", "*", "ord*", "order.paid,sale.gone", "Order.paid"] {
            assert!(bad.parse::<EventTypes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rebuild_is_no_event() {
        use SaleState::{Archived, Closed, Draft, Frozen, Open, Paused};
        assert_eq!(SaleEvent::of(Draft, Open), Some(SaleEvent::Opened));
        assert_eq!(SaleEvent::of(Paused, Open), Some(SaleEvent::Resumed));
        assert_eq!(SaleEvent::of(Frozen, Closed), Some(SaleEvent::Closed));
        for (from, to) in [(Open, Open), (Open, Frozen), (Frozen, Open), (Frozen, Paused), (Closed, Archived)]
        {
            assert_eq!(SaleEvent::of(from, to), None, "{from} to {to}");
        }
    }
}
