//! Every key of the gate, by name. All keys of a sale carry the sale's hash tag `{sale}`, so that
//! a script over them stays in one slot of a Redis Cluster.
//!
//! | key | type | holds |
//! | --- | --- | --- |
//! | `P:{S}:sale`   | hash | state, window, limit, name, epoch, seq |
//! | `P:{S}:items`  | hash | sku -> units left |
//! | `P:{S}:stock`  | hash | sku -> units loaded |
//! | `P:{S}:users`  | hash | user -> records of the orders that the user holds |
//! | `P:{S}:outbox` | hash | order id -> entry, from admission to committed row |
//! | `P:{S}:age`    | zset | order id by the time it was accepted |
//! | `P:{S}:due`    | zset | order id by the time the sweep looks at it |
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

    /// What `admit.lua` and `settle.lua` work on, in their order.
    pub(super) fn flight(&self) -> [String; 6] {
        [self.sale(), self.items(), self.users(), self.outbox(), self.age(), self.due()]
    }
}

pub(super) fn sales(prefix: &str) -> String {
    format!("{prefix}:sales")
}
