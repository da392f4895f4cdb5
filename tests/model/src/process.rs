//! The processes: what each has in memory between two steps, and what dies with it.

use crate::state::{Number, ORDERS, Place, Record, Row, USERS};

/// A user's lease. Tokens are ranks: only their order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// Who holds it.
    pub owner: Owner,
    /// Its fencing token.
    pub token: u8,
}

/// The holder of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// It is free.
    Nobody,
    /// Its holder is dead; it ends by itself.
    Dead,
    /// This worker.
    Worker(u8),
    /// The process that changes an order.
    Act,
}

/// What a process knows of the database's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Heard {
    /// The highest place that it has seen.
    pub place: Place,
    /// It has a new connection, and has not asked the other witnesses since.
    pub in_doubt: bool,
}

/// Where a worker is with its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// It has none.
    Idle,
    /// It has an order.
    Got,
    /// It holds the lease.
    Leased,
    /// It has found its lease valid; COMMIT is next, however late.
    Checked,
    /// The outcome is durable.
    Committed,
    /// The delivery is acknowledged and the lease released; settling is next.
    Acked,
}

/// A worker with one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    /// Where it is.
    pub work: Work,
    /// The order.
    pub order: u8,
    /// The token of its lease.
    pub token: u8,
    /// The outcome that it has committed or found.
    pub outcome: Row,
    /// What it knows of the database's place.
    pub heard: Heard,
}

/// A change of an order's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A verified payment.
    Pay,
    /// The deadline has passed.
    Expire,
    /// The buyer does not want it any more.
    Cancel,
    /// Nothing but the return of a unit that is owed.
    Return,
    /// The adoption of a row that a rebuilt gate does not know.
    Adopt,
}

/// Where a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// It holds the user's lease.
    Leased,
    /// It has found its lease valid.
    Checked,
    /// The change is durable.
    Committed,
    /// The gate has the unit back; the row still owes it.
    Returned(Number),
}

/// A change under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Act {
    /// What it does.
    pub kind: Kind,
    /// To which order.
    pub order: u8,
    /// The token of its lease.
    pub token: u8,
    /// The line of the database before it began.
    pub line: u8,
    /// Where it is.
    pub step: Step,
}

/// What the relay of a front has in memory of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Relay {
    /// Nothing.
    None,
    /// It publishes it next.
    Publish,
    /// It waits for the confirm.
    Unconfirmed,
}

/// Where a rebuild is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The sale is frozen in the new epoch.
    Begun,
    /// The outbox was read.
    Outbox,
    /// The log was read, too.
    Log,
    /// What is owed was read, then the rows of this many users.
    Rows(u8),
    /// The gate is loaded.
    Loaded,
}

/// A rebuild under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rebuild {
    /// Where it is.
    pub phase: Phase,
    /// Its epoch.
    pub epoch: u8,
    /// Orders without a row, as far as it has read.
    pub waiting: [bool; ORDERS],
    /// Orders whose unit was owed.
    pub owed: [bool; ORDERS],
    /// What it will load.
    pub records: [Record; ORDERS],
}

/// A replay of the order log under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Replay {
    /// The state that each order is to get.
    pub rows: [Row; ORDERS],
}

/// A reading of the sale in a front's refusal cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reading {
    /// Ticks since the gate was asked.
    pub age: u8,
    /// What the gate said: its number, whether it is sold out, and who holds anything. `None` until it answers.
    pub known: Option<(Number, bool, [bool; USERS])>,
}

/// A reader between the gate and the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reader {
    /// The order.
    pub order: u8,
    /// The gate has an entry that is not marked as ended.
    pub in_flight: bool,
}
