//! Every key of the gate, by name. `P` is the installation's prefix and `S` the sale. All keys of a sale carry its
//! hash tag `{S}`, so that a script over them stays in one slot of a Redis Cluster.
//!
//! | key | type | holds |
//! | --- | --- | --- |
//! | `P:{S}:sale`   | hash | state, window, limits, name, other terms, epoch, seq; limit, version and last requests of each item |
//! | `P:{S}:items`  | hash | sku -> units left |
//! | `P:{S}:stock`  | hash | sku -> units loaded |
//! | `P:{S}:users`  | hash | user -> records of the orders held and of the last few that ended; those have negative units |
//! | `P:{S}:outbox` | hash | order id -> entry, from admission to committed row |
//! | `P:{S}:age`    | zset | order id by the time of acceptance |
//! | `P:{S}:due`    | zset | order id by the time when the sweep looks at it |
//! | `P:{S}:rates`  | hash | user -> when their token bucket is full again |
//! | `P:{S}:staged:N` | hash | the next `users`, until the rebuild in epoch N loads it |
//! | `P:sales`      | set  | the sales that are loaded, for the sweep |
//! | `P:places`     | hash | sale -> line and number of the database's place in a sale that the gate has lost |
//! | `P:tries`    | hash | first order id of a message -> tries to persist it that came to no end |
//! | `P:installation` | string | the id of the installation; see [`crate::link::Installation`] |
//!
//! The ids of orders that have changed are announced on the channel `P:{S}:outbox`: see
//! [`OrderChanges`](super::OrderChanges).

use crate::domain::SaleId;

/// The keys of one sale.
pub(super) struct SaleKeys {
    base: String,
}

impl SaleKeys {
    pub(super) fn new(prefix: &str, sale: &SaleId) -> Self {
        Self { base: format!("{prefix}:{{{sale}}}:") }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.base)
    }

    pub(super) fn sale(&self) -> String {
        self.key("sale")
    }

    pub(super) fn items(&self) -> String {
        self.key("items")
    }

    pub(super) fn stock(&self) -> String {
        self.key("stock")
    }

    pub(super) fn users(&self) -> String {
        self.key("users")
    }

    pub(super) fn outbox(&self) -> String {
        self.key("outbox")
    }

    pub(super) fn age(&self) -> String {
        self.key("age")
    }

    pub(super) fn due(&self) -> String {
        self.key("due")
    }

    pub(super) fn staged(&self, epoch: i64) -> String {
        self.key(&format!("staged:{epoch}"))
    }

    /// The keys of `settle.lua`, in its order.
    pub(super) fn flight(&self) -> [String; 6] {
        [self.sale(), self.items(), self.users(), self.outbox(), self.age(), self.due()]
    }

    /// The keys of `admit.lua`, in its order.
    pub(super) fn admission(&self) -> [String; 7] {
        let [sale, items, users, outbox, age, due] = self.flight();
        [sale, items, users, outbox, age, due, self.key("rates")]
    }

    /// All keys, in the order of `unload.lua`.
    pub(super) fn all(&self) -> [String; 8] {
        let [sale, items, users, outbox, age, due, rates] = self.admission();
        [sale, items, self.stock(), users, outbox, age, due, rates]
    }
}

/// The register of loaded sales.
pub(super) fn sales(prefix: &str) -> String {
    format!("{prefix}:sales")
}

/// Tries of messages that came to no end.
pub(super) fn tries(prefix: &str) -> String {
    format!("{prefix}:tries")
}

/// The places of the database in sales that the gate has lost.
pub(super) fn places(prefix: &str) -> String {
    format!("{prefix}:places")
}
