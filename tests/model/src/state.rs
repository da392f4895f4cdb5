//! One state of the whole system: the three servers, the processes, and what the properties remember.

pub use crate::process::{
    Act, Heard, Kind, Lease, Owner, Phase, Reader, Reading, Rebuild, Relay, Replay, Step, Work, Worker,
};

/// Orders that a run may have; an order's id is its index.
pub const ORDERS: usize = 4;
/// Buyers.
pub const USERS: usize = 2;
/// Workers.
pub const WORKERS: usize = 2;
/// The most copies of one message that wait in the queue.
pub const COPIES: u8 = 2;
/// The age at which a reading may no longer refuse, in ticks: the 4 ms of `src/gate/refusal_age.rs`.
pub const MAX_AGE: u8 = 2;

/// The number of a write to the gate: epoch and sequence.
pub type Number = (u8, u8);
/// How far the database has come: line and number.
pub type Place = (u8, u8);

/// An order as its buyer placed it. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Order {
    /// Its buyer.
    pub user: u8,
    /// The idempotency key of the click.
    pub key: u8,
    /// The number that the gate gave it.
    pub number: Number,
}

/// Whether a gate sells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Selling {
    /// Redis does not know the sale.
    Missing,
    /// It sells.
    Open,
    /// It waits for a rebuild.
    Frozen,
    /// An operator has to look, because the database has refused an order.
    Paused,
}

/// What the gate remembers of a user's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Record {
    /// Nothing.
    None,
    /// The user holds it.
    Held,
    /// It has ended, and its unit is back.
    Ended,
}

/// An entry of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    /// There is none.
    None,
    /// No confirm is known.
    Outbox,
    /// The broker has confirmed it.
    Broker,
    /// Readers go to its row.
    Ended,
}

/// The gate of the sale, in Redis. The order of the fields is that of the hash of the state only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    /// Whether it sells.
    pub selling: Selling,
    /// The number of its last write.
    pub number: Number,
    /// Units left.
    pub left: i8,
    /// The version of the stock.
    pub version: u8,
    /// What it remembers of each order.
    pub records: [Record; ORDERS],
    /// Orders in flight.
    pub outbox: [Entry; ORDERS],
    /// The highest place of the database that it has witnessed; kept as `P:places` if the sale is missing.
    pub witness: Place,
}

/// The state of an order's row. A later one has a higher rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Row {
    /// There is none.
    None,
    /// Live, and not paid.
    Confirmed,
    /// Live, and paid.
    Paid,
    /// Not paid in time.
    Expired,
    /// Cancelled by its buyer.
    Cancelled,
    /// Refused, because its user has another order.
    Replaced,
    /// Refused, because no unit is left, or because another order has its number.
    Refused,
}

impl Row {
    /// Whether it holds a unit.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Confirmed | Self::Paid)
    }

    /// Whether it has ended without being refused, so that its unit goes back.
    pub fn returns(self) -> bool {
        matches!(self, Self::Expired | Self::Cancelled)
    }

    /// How far the order has come: 0 accepted, 1 confirmed, 2 for everything after that.
    pub fn rank(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Confirmed => 1,
            _ => 2,
        }
    }
}

/// The database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Db {
    /// The rows of the orders.
    pub rows: [Row; ORDERS],
    /// Whether the row was refused without its number: another order has it.
    pub unnumbered: [bool; ORDERS],
    /// `user_units.units`.
    pub units: [u8; USERS],
    /// `user_units.fence`.
    pub fence: [u8; USERS],
    /// The highest token whose write took effect. Not in the real database: for the property.
    pub writer: [u8; USERS],
    /// `items.stock`, `items.sold` and the version of the stock.
    pub stock: u8,
    /// Units sold.
    pub sold: u8,
    /// Raised by each change of stock.
    pub version: u8,
    /// Orders whose units the gate may not have back: `gate_returns`.
    pub returns: [bool; ORDERS],
    /// Orders whose change is not in the order log yet: `log_outbox`.
    pub unlogged: [bool; ORDERS],
    /// The highest number that left no other trace: `sales.told_epoch`, `told_seq`.
    pub told: Number,
    /// Its place.
    pub place: Place,
}

/// The order log: what a reader of the whole stream knows in the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Log {
    /// Published orders.
    pub accepted: [bool; ORDERS],
    /// The newest state of each row that was appended.
    pub rows: [Row; ORDERS],
    /// The highest place in any entry.
    pub place: Place,
}

/// What is left of the budgets of faults and of people's acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Budget {
    /// New clicks.
    pub clicks: u8,
    /// Crashes of a worker.
    pub worker_crashes: u8,
    /// Crashes of a front, or of a rebuild or a replay.
    pub front_crashes: u8,
    /// Leases that end while their holder is stalled.
    pub stalls: u8,
    /// Confirms and answers of the gate that are lost.
    pub lost_answers: u8,
    /// Messages that are delivered once more.
    pub duplicates: u8,
    /// Purges of the queue.
    pub purges: u8,
    /// Times that Redis goes back.
    pub redis_back: u8,
    /// Times that Redis is emptied.
    pub redis_empty: u8,
    /// Times that the database goes back.
    pub db_back: u8,
    /// Payments.
    pub payments: u8,
    /// Deadlines that pass.
    pub expiries: u8,
    /// Cancellations.
    pub cancels: u8,
    /// Raises of the stock.
    pub restocks: u8,
    /// Answers to readers.
    pub reads: u8,
    /// Refusals from the cache, with the clock that they need.
    pub refusals: u8,
}

/// What the properties remember. No step of the protocol reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Orders that only Redis held when it lost them: the documented limit.
    pub exposed: [bool; ORDERS],
    /// Payments that were answered.
    pub paid: [bool; ORDERS],
    /// The last answer to a reader, as a row; `None` before the first.
    pub seen: [Option<u8>; ORDERS],
    /// How often the unit of each order went back to the gate and stayed there.
    pub returned: [u8; ORDERS],
    /// Highest number whose change somebody knows of.
    pub revealed: Number,
    /// Ticks for which a unit has been on sale without a break.
    pub free_for: u8,
    /// The database's place before it went back, until it is restored.
    pub lost_place: Option<Place>,
    /// A loss of the database that no witness had heard of: the documented limit.
    pub unwitnessed: bool,
    /// The first rule that a step broke.
    pub broken: Option<Broken>,
}

/// A rule that a single step can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Broken {
    /// A reader saw an order go back.
    WentBackwards,
    /// A reader heard that an accepted order does not exist.
    NotFound,
    /// A refusal contradicts an earlier answer.
    Contradiction,
    /// A refusal was older than promised.
    StaleRefusal,
    /// A write took effect after one with a higher token.
    StaleWrite,
}

/// The whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The orders that the gate has accepted.
    pub orders: [Option<Order>; ORDERS],
    /// The gate.
    pub gate: Gate,
    /// Redis's books were compared since it started: it knows the admission script.
    pub compared: bool,
    /// An earlier state of the gate, to which Redis may go back.
    pub saved_gate: Option<Box<Gate>>,
    /// Copies of each order's message in the queue.
    pub queue: [u8; ORDERS],
    /// The order log.
    pub log: Log,
    /// The database.
    pub db: Db,
    /// An earlier state of the database, to which it may go back.
    pub saved_db: Option<Box<Db>>,
    /// Leases, by user.
    pub leases: [Lease; USERS],
    /// The workers.
    pub workers: [Worker; WORKERS],
    /// The relay of the fronts.
    pub relay: [Relay; ORDERS],
    /// The highest number that the fronts know.
    pub known: Number,
    /// What the fronts know of the database's place.
    pub heard: Heard,
    /// A change of an order under way.
    pub act: Option<Act>,
    /// Payments whose provider has no answer yet.
    pub paying: [bool; ORDERS],
    /// A comparison of a restarted Redis under way: the highest number found in the rows.
    pub compare: Option<Number>,
    /// A rebuild under way.
    pub rebuild: Option<Rebuild>,
    /// A replay under way.
    pub replay: Option<Replay>,
    /// A raise of the stock that has not been answered yet: the number it took in the gate, and ticks since.
    pub restocked: Option<(Number, u8)>,
    /// Accepted orders whose buyer has no answer yet: ticks since the gate accepted each.
    pub news: [Option<u8>; ORDERS],
    /// The refusal cache of a front.
    pub reading: Option<Reading>,
    /// A reader under way.
    pub reader: Option<Reader>,
    /// What may still happen.
    pub budget: Budget,
    /// What the properties remember.
    pub memory: Memory,
}
