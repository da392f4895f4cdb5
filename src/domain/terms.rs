//! The terms of a sale that an operator may change while it sells.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Invalid, Millis, Sale, Sku};

/// A rate limit: at most `count` attempts in `seconds` seconds, in a burst or spread out. Written `5/10s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    seconds: u32,
}

impl Rate {
    /// 1 to 1,000,000 attempts in 1 to 3,600 seconds. A rate of zero would close the sale without saying so.
    pub fn new(count: u32, seconds: u32) -> Result<Self, Invalid> {
        if (1..=1_000_000).contains(&count) && (1..=3_600).contains(&seconds) {
            return Ok(Self { count, seconds });
        }
        Err(Invalid { what: "a rate", rule: Self::RULE })
    }

    const RULE: &str =
        "written like 5/10s: 1 to 1000000 attempts in 1 to 3600 seconds (to take no orders, pause the sale)";

    /// Attempts in [`Rate::seconds`].
    pub fn count(self) -> u32 {
        self.count
    }

    /// The length of the interval.
    pub fn seconds(self) -> u32 {
        self.seconds
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}s", self.count, self.seconds)
    }
}

impl std::str::FromStr for Rate {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let read = || {
            let (count, seconds) = text.split_once('/')?;
            Some((count.parse().ok()?, seconds.strip_suffix('s')?.parse().ok()?))
        };
        // Unreadable text is refused like a rate of zero.
        let (count, seconds) = read().unwrap_or((0, 0));
        Self::new(count, seconds)
    }
}

impl Serialize for Rate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What happens to a payment for an order that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatePayment {
    /// A new order takes the units, if they are free; otherwise as `Refund`.
    #[default]
    Retake,
    /// The payment is recorded for a refund.
    Refund,
}

impl LatePayment {
    /// The name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retake => "retake",
            Self::Refund => "refund",
        }
    }
}

impl std::str::FromStr for LatePayment {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        [Self::Retake, Self::Refund]
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or(Invalid { what: "late_payment", rule: "one of retake, refund" })
    }
}

/// The most seconds that an order may wait for its payment: thirty days.
const LONGEST_TO_PAY: u32 = 30 * 86_400;

/// The terms of a sale besides its window and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terms {
    /// Seconds after its confirmation by which an order must be paid: 1 to 2592000. `None`: no deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pay_within_s: Option<u32>,
    /// Whether users may buy again after their order ended unpaid or was refunded.
    pub rebuy: bool,
    /// What happens to a payment for an order that has ended.
    pub late_payment: LatePayment,
    /// Attempts of one user. Repeats are not counted. `None`: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_rate: Option<Rate>,
    /// Attempts of all users together. `None`: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sale_rate: Option<Rate>,
    /// Shown to buyers while the sale is paused: 1 to 200 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `Retry-After` while the sale is paused, 1 to 86400 seconds. `None`: 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            pay_within_s: None,
            rebuy: true,
            late_payment: LatePayment::default(),
            user_rate: None,
            sale_rate: None,
            message: None,
            retry_after_s: None,
        }
    }
}

impl Terms {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.pay_within_s.is_some_and(|seconds| !(1..=LONGEST_TO_PAY).contains(&seconds)) {
            return Err(Invalid { what: "pay_within_s", rule: "1 to 2592000 seconds" });
        }
        if self.retry_after_s.is_some_and(|seconds| !(1..=86_400).contains(&seconds)) {
            return Err(Invalid { what: "retry_after_s", rule: "1 to 86400 seconds" });
        }
        match &self.message {
            Some(message) => check_text("a message", message, 200),
            None => Ok(()),
        }
    }
}

/// A change of a sale's terms. A field that is left out stays as it is, and `null` removes a term.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TermsChange {
    /// The new opening time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens_at: Option<Millis>,
    /// The new closing time, in the future.
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    pub closes_at: Option<Option<Millis>>,
    /// The most units per user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_per_user: Option<u32>,
    /// The most units per user, item by item.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub item_limits: BTreeMap<Sku, Option<u32>>,
    /// As in [`Terms`], for orders that are confirmed from then on.
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    pub pay_within_s: Option<Option<u32>>,
    /// As in [`Terms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuy: Option<bool>,
    /// As in [`Terms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_payment: Option<LatePayment>,
    /// As in [`Terms`].
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    pub user_rate: Option<Option<Rate>>,
    /// As in [`Terms`].
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    pub sale_rate: Option<Option<Rate>>,
    /// As in [`Terms`].
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    pub message: Option<Option<String>>,
    /// As in [`Terms`].
    #[serde(with = "or_null", skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<Option<u32>>,
}

impl TermsChange {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The sale with the new terms, if it could be sold with them at `now`. Changes nothing else.
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

/// Checks a short text for people: 1 to `most` characters, none of them a control character. `most` is 100 or 200.
pub fn check_text(what: &'static str, text: &str, most: usize) -> Result<(), Invalid> {
    if (1..=most).contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let rule = match most {
        100 => "1 to 100 characters, none of them a control character",
        _ => "1 to 200 characters, none of them a control character",
    };
    Err(Invalid { what, rule })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_written_in_one_way_and_none_is_refused() {
        let rate: Rate = "5/10s".parse().expect("valid");
        assert_eq!((rate.count(), rate.seconds(), rate.to_string().as_str()), (5, 10, "5/10s"));
        for wrong in ["0/10s", "5/0s", "5", "5/10", "-1/1s", "5/1h", "", "1000001/1s"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
