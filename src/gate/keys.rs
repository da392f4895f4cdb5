//! Every key of the gate, by name. All keys of a sale carry the sale's hash tag `{sale}`, so that
//! a script over them stays in one slot of a Redis Cluster.
//!
//! | key | type | holds |
//! | --- | --- | --- |
//! | `P:{S}:sale`   | hash | state, window, limit, name, rules, epoch, seq; of each item its limit and its version |
//! | `P:{S}:items`  | hash | sku -> units left |
//! | `P:{S}:stock`  | hash | sku -> units loaded |
//! | `P:{S}:users`  | hash | user -> records of the orders that the user holds, and of the last that ended, with minus their units |
//! | `P:{S}:outbox` | hash | order id -> entry, from admission to committed row |
//! | `P:{S}:age`    | zset | order id by the time it was accepted |
//! | `P:{S}:due`    | zset | order id by the time the sweep looks at it |
//! | `P:{S}:rates`  | hash | user -> when his token bucket is full again |
//! | `P:{S}:staged:N` | hash | what becomes of `users` when a rebuild loads; each has its own |
//! | `P:sales`      | set  | the sales that were loaded, for the sweep |

use crate::domain::SaleId;

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

    pub(super) fn staged(&self, of: &str) -> String {
        self.key(&format!("staged:{of}"))
    }

    /// What `settle.lua` works on, in its order.
    pub(super) fn flight(&self) -> [String; 6] {
        [self.sale(), self.items(), self.users(), self.outbox(), self.age(), self.due()]
    }

    /// What `admit.lua` works on, in its order.
    pub(super) fn admission(&self) -> [String; 7] {
        let [sale, items, users, outbox, age, due] = self.flight();
        [sale, items, users, outbox, age, due, self.key("rates")]
    }

    /// All of them, as `unload.lua` takes them.
    pub(super) fn all(&self) -> [String; 8] {
        let [sale, items, users, outbox, age, due, rates] = self.admission();
        [sale, items, self.stock(), users, outbox, age, due, rates]
    }
}

pub(super) fn sales(prefix: &str) -> String {
    format!("{prefix}:sales")
}
