//! Changes that an operator makes to a sale while it sells.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Invalid, LatePayment, Millis, Rate, Sale, Sku};

/// A change of a sale's terms. A field that is left out stays as it is, and `null` removes a term.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TermsChange {
    /// The new opening time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens_at: Option<Millis>,
    /// The new closing time, in the future.
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Millis>")]
    pub closes_at: Option<Option<Millis>>,
    /// The most units per user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_per_user: Option<u32>,
    /// The most units per user, item by item.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub item_limits: BTreeMap<Sku, Option<u32>>,
    /// As in [`Terms`](super::Terms), for orders that are confirmed from then on.
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>")]
    pub pay_within_s: Option<Option<u32>>,
    /// As in [`Terms`](super::Terms).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuy: Option<bool>,
    /// As in [`Terms`](super::Terms).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_payment: Option<LatePayment>,
    /// As in [`Terms`](super::Terms).
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Rate>")]
    pub user_rate: Option<Option<Rate>>,
    /// As in [`Terms`](super::Terms).
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Rate>")]
    pub sale_rate: Option<Option<Rate>>,
    /// As in [`Terms`](super::Terms).
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub message: Option<Option<String>>,
    /// As in [`Terms`](super::Terms).
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>")]
    pub retry_after_s: Option<Option<u32>>,
}

impl TermsChange {
    /// Whether it leaves everything as it is.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the sale with the new terms, if it could be sold with them at `now`. Nothing else changes.
    pub fn apply(&self, sale: &Sale, now: Millis) -> Result<Sale, Invalid> {
        let mut sale = sale.clone();
        if let Some(opens_at) = self.opens_at {
            sale.window.opens_at = opens_at;
        }
        if let Some(closes_at) = self.closes_at {
            if closes_at.is_some_and(|closes_at| closes_at <= now) {
                return Err(Invalid {
                    what: "closes_at",
                    rule: "in the future; to end a sale now, close it",
                });
            }
            sale.window.closes_at = closes_at;
        }
        if let Some(limit) = self.limit_per_user {
            sale.limit_per_user = limit;
        }
        for (sku, limit) in &self.item_limits {
            let item = sale.items.iter_mut().find(|item| item.sku == *sku);
            let unknown = Invalid { what: "item_limits", rule: "for items of the sale" };
            item.ok_or(unknown)?.limit_per_user = *limit;
        }
        fn set<T: Clone>(term: &mut T, to: &Option<T>) {
            if let Some(to) = to {
                term.clone_from(to);
            }
        }
        let terms = &mut sale.terms;
        set(&mut terms.pay_within_s, &self.pay_within_s);
        set(&mut terms.rebuy, &self.rebuy);
        set(&mut terms.late_payment, &self.late_payment);
        set(&mut terms.user_rate, &self.user_rate);
        set(&mut terms.sale_rate, &self.sale_rate);
        set(&mut terms.message, &self.message);
        set(&mut terms.retry_after_s, &self.retry_after_s);
        sale.check()?;
        Ok(sale)
    }
}

/// Distinguishes `null` from a missing field.
mod or_null {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<Option<T>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().and_then(Option::as_ref).serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Option<T>>, D::Error> {
        Option::deserialize(deserializer).map(Some)
    }
}
