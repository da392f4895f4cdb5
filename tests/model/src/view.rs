//! What can be read off a state, and the first state.

use crate::config::Config;
use crate::state::{
    Budget, Db, Entry, Gate, Heard, Lease, Log, Memory, Number, ORDERS, Order, Owner, Record, Relay, Row,
    Selling, State, USERS, WORKERS, Work, Worker,
};

impl Gate {
    /// A Redis that does not know the sale.
    pub fn missing() -> Self {
        Self {
            selling: Selling::Missing,
            number: (0, 0),
            left: 0,
            version: 0,
            records: [Record::None; ORDERS],
            outbox: [Entry::None; ORDERS],
            witness: (0, 0),
        }
    }
}

impl Worker {
    /// One without a delivery that knows nothing.
    pub fn idle() -> Self {
        let heard = Heard { place: (0, 0), in_doubt: false };
        Self { work: Work::Idle, order: 0, token: 0, outcome: Row::None, heard }
    }
}

impl State {
    /// An open sale of which nothing is sold.
    pub fn first(config: &Config) -> Self {
        let place = if config.follows_places() { (1, 1) } else { (0, 0) };
        let heard = Heard { place, in_doubt: false };
        let gate = Gate {
            selling: Selling::Open,
            number: (1, 0),
            left: config.stock as i8,
            witness: place,
            ..Gate::missing()
        };
        Self {
            orders: [None; ORDERS],
            gate,
            compared: true,
            saved_gate: None,
            queue: [0; ORDERS],
            log: Log { accepted: [false; ORDERS], rows: [Row::None; ORDERS], place },
            db: Db {
                rows: [Row::None; ORDERS],
                unnumbered: [false; ORDERS],
                units: [0; USERS],
                fence: [0; USERS],
                writer: [0; USERS],
                stock: config.stock,
                sold: 0,
                version: 0,
                returns: [false; ORDERS],
                unlogged: [false; ORDERS],
                told: (1, 0),
                place,
            },
            saved_db: None,
            leases: [Lease { owner: Owner::Nobody, token: 0 }; USERS],
            workers: [Worker { heard, ..Worker::idle() }; WORKERS],
            relay: [Relay::None; ORDERS],
            known: (1, 0),
            heard,
            act: None,
            paying: [false; ORDERS],
            compare: None,
            rebuild: None,
            replay: None,
            restocked: None,
            news: [None; ORDERS],
            reading: None,
            reader: None,
            budget: Budget { ..config.budget },
            memory: Memory::default(),
        }
    }

    /// The orders that the gate has accepted, with their ids.
    pub fn accepted(&self) -> impl Iterator<Item = (usize, Order)> + '_ {
        self.orders.iter().enumerate().filter_map(|(id, order)| Some((id, (*order)?)))
    }

    /// Orders of a user with a live row.
    pub fn live_of(&self, user: u8) -> impl Iterator<Item = usize> + '_ {
        let own =
            self.accepted().filter(move |(id, order)| order.user == user && self.db.rows[*id].is_live());
        own.map(|(id, _)| id)
    }

    /// The user of an order.
    pub fn user_of(&self, id: usize) -> u8 {
        self.orders[id].map_or(0, |order| order.user)
    }

    /// The number of an order.
    pub fn number_of(&self, id: usize) -> Number {
        self.orders[id].map_or((0, 0), |order| order.number)
    }

    /// The highest number of a row.
    pub fn highest_row(&self) -> Number {
        let rows =
            self.accepted().filter(|(id, _)| self.db.rows[*id] != Row::None && !self.db.unnumbered[*id]);
        rows.map(|(_, order)| order.number).max().unwrap_or_default()
    }

    /// Whether another row has this order's number.
    pub fn is_taken(&self, id: usize) -> bool {
        let number = self.number_of(id);
        let mut rows = self.accepted().filter(|(other, order)| *other != id && order.number == number);
        rows.any(|(other, _)| self.db.rows[other] != Row::None && !self.db.unnumbered[other])
    }

    /// Whether nobody holds the user's lease.
    pub fn is_free(&self, user: u8) -> bool {
        self.leases[usize::from(user)].owner == Owner::Nobody
    }

    /// Releases the lease of an order's user, if it is still the one with this token.
    pub fn release(&mut self, id: usize, token: u8) {
        let user = usize::from(self.user_of(id));
        if self.leases[user].token == token && !matches!(self.leases[user].owner, Owner::Dead) {
            self.leases[user].owner = Owner::Nobody;
        }
    }

    /// Whether two processes are at this moment between lease and COMMIT for one user.
    pub fn acting_for(&self, user: u8) -> usize {
        let acts = |work| matches!(work, Work::Leased | Work::Checked);
        let workers =
            self.workers.iter().filter(|it| acts(it.work) && self.user_of(usize::from(it.order)) == user);
        let changes = self.act.iter().filter(|act| {
            use crate::state::Step::{Checked, Leased};
            matches!(act.step, Leased | Checked) && self.user_of(usize::from(act.order)) == user
        });
        workers.count() + changes.count()
    }

    /// Records the first rule that was broken.
    pub fn broke(&mut self, rule: crate::state::Broken) {
        self.memory.broken.get_or_insert(rule);
    }

    /// Whether the database has lost commits and is not restored.
    pub fn has_lost_commits(&self) -> bool {
        self.memory.lost_place.is_some()
    }
}
