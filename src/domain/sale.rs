//! A sale: one drop with a window, a limit per user and items.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::terms::check_text;
use super::{Invalid, Millis, SaleId, Sku, Terms};

/// Units in one order. A bound on what one click can ask for, far above any limit per user.
pub const MAX_QUANTITY: u32 = 1_000;

/// Units of one item. Lua numbers are exact to 2^53; this keeps every sum far below.
pub const MAX_STOCK: i64 = 1_000_000_000;
const MAX_ITEMS: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaleState {
    /// Created in the database; the gate does not know it.
    Draft,
    /// Loaded into the gate; sells inside its window.
    Open,
    /// Loaded, refuses admissions until an operator resumes it.
    Paused,
    /// The gate found that it lost writes, and stopped by itself.
    Frozen,
    /// For good.
    Closed,
    /// Closed, and no longer in the gate.
    Archived,
}

impl SaleState {
    pub const ALL: [SaleState; 6] =
        [Self::Draft, Self::Open, Self::Paused, Self::Frozen, Self::Closed, Self::Archived];

    /// Is it over for good?
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Closed | Self::Archived)
    }

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

/// When buyers may order: from `opens_at` on, and before `closes_at`, by Redis's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub opens_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closes_at: Option<Millis>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    pub sku: Sku,
    pub stock: i64,
    /// Units of this item per user; without it, the sale's limit alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_per_user: Option<u32>,
}

/// A sale as it is created. [`Sale::check`] holds for every sale that the store or the gate sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sale {
    pub id: SaleId,
    pub name: String,
    pub window: Window,
    pub limit_per_user: u32,
    pub terms: Terms,
    pub items: Vec<Item>,
}

impl Sale {
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
            return wrong("items", "a list in which no sku stands twice");
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
