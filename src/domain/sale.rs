//! A sale: a window, a limit per user, terms and items.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Invalid, Millis, SaleId, Sku, Terms, check_text};

/// The most units in one order, and the highest limit per user.
pub const MAX_QUANTITY: u32 = 1_000;

/// The most units of one item. Lua numbers are exact up to 2^53, and this keeps every sum far below.
pub const MAX_STOCK: i64 = 1_000_000_000;

const MAX_ITEMS: usize = 100;

/// The state of a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaleState {
    /// Only in the database; the gate does not know it.
    Draft,
    /// Loaded into the gate. Sells within its window.
    Open,
    /// Loaded. Refuses orders until an operator resumes it.
    Paused,
    /// The gate lost writes. Only a rebuild lets the sale continue.
    Frozen,
    /// Ended for good.
    Closed,
    /// Closed and removed from the gate.
    Archived,
}

impl SaleState {
    /// Every state.
    pub const ALL: [SaleState; 6] =
        [Self::Draft, Self::Open, Self::Paused, Self::Frozen, Self::Closed, Self::Archived];

    /// Whether the sale has ended for good.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Closed | Self::Archived)
    }

    /// The name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Open => "open",
            Self::Paused => "paused",
            Self::Frozen => "frozen",
            Self::Closed => "closed",
            Self::Archived => "archived",
        }
    }
}

impl std::str::FromStr for SaleState {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or(Invalid {
            what: "a sale state",
            rule: "one of draft, open, paused, frozen, closed, archived",
        })
    }
}

impl fmt::Display for SaleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// When buyers may order, by Redis's clock: from `opens_at`, and before `closes_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The first instant at which the sale sells.
    pub opens_at: Millis,
    /// The first instant at which it no longer sells. `None`: until it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closes_at: Option<Millis>,
}

/// One item of a sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Its id, unique within the sale.
    pub sku: Sku,
    /// All of its units, including those sold: 0 to [`MAX_STOCK`].
    pub stock: i64,
    /// The most units of this item per user. `None`: only the sale's limit applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_per_user: Option<u32>,
}

/// A sale as it is created. Every sale that the store or the gate sees has passed [`Sale::check`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sale {
    /// Its id.
    pub id: SaleId,
    /// Its name for buyers: 1 to 200 characters on one line.
    pub name: String,
    /// When buyers may order.
    pub window: Window,
    /// The most units per user, across all items: 1 to [`MAX_QUANTITY`].
    pub limit_per_user: u32,
    /// The other terms that an operator can change.
    pub terms: Terms,
    /// 1 to 100 items, each sku once.
    pub items: Vec<Item>,
}

impl Sale {
    /// Checks whether the sale can be sold. The error names the first invalid field and its rule.
    pub fn check(&self) -> Result<(), Invalid> {
        let wrong = |what, rule| Err(Invalid { what, rule });
        check_text("a sale's name", &self.name, 200)?;
        self.terms.check()?;
        let limits = self.items.iter().filter_map(|item| item.limit_per_user);
        if limits.into_iter().any(|limit| !(1..=MAX_QUANTITY).contains(&limit)) {
            return wrong("an item's limit_per_user", "1 to 1000");
        }
        if !(1..=MAX_QUANTITY).contains(&self.limit_per_user) {
            return wrong("limit_per_user", "1 to 1000");
        }
        if self.window.closes_at.is_some_and(|closes_at| closes_at <= self.window.opens_at) {
            return wrong("closes_at", "later than opens_at");
        }
        if !(1..=MAX_ITEMS).contains(&self.items.len()) {
            return wrong("items", "a list of 1 to 100 items");
        }
        if self.items.iter().any(|item| !(0..=MAX_STOCK).contains(&item.stock)) {
            return wrong("an item's stock", "0 to 1000000000");
        }
        let mut skus: Vec<_> = self.items.iter().map(|item| &item.sku).collect();
        skus.sort_unstable();
        skus.dedup();
        if skus.len() != self.items.len() {
            return wrong("items", "a list with each sku only once");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sale() -> Sale {
        Sale {
            id: SaleId::parse("drop").expect("valid"),
            name: "Drop".into(),
            window: Window { opens_at: Millis(10), closes_at: Some(Millis(20)) },
            limit_per_user: 1,
            terms: Terms::default(),
            items: vec![Item { sku: Sku::parse("shoe").expect("valid"), stock: 5, limit_per_user: None }],
        }
    }

    #[test]
    fn a_sale_that_could_not_be_sold_is_refused() {
        assert_eq!(sale().check(), Ok(()));
        let broken: [fn(&mut Sale); 11] = [
            |sale| sale.name = String::new(),
            |sale| sale.name = "a\nb".into(),
            |sale| sale.limit_per_user = 0,
            |sale| sale.limit_per_user = 1_001,
            |sale| sale.window.closes_at = Some(Millis(10)),
            |sale| sale.items.clear(),
            |sale| sale.items[0].stock = -1,
            |sale| sale.items.push(sale.items[0].clone()),
            |sale| sale.items[0].limit_per_user = Some(0),
            |sale| sale.terms.pay_within_s = Some(0),
            |sale| sale.terms.message = Some(String::new()),
        ];
        for (which, damage) in broken.iter().enumerate() {
            let mut sale = sale();
            damage(&mut sale);
            assert!(sale.check().is_err(), "damage {which} was accepted");
        }
    }
}
