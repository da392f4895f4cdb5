//! The terms of a sale that an operator may change while it sells.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Invalid, check_text};

/// A rate limit: at most `count` attempts in `seconds` seconds, in a burst or spread out. Written `5/10s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(with = "String", extend("pattern" = "^[1-9][0-9]{0,6}/[1-9][0-9]{0,3}s$"))]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LatePayment {
    /// A new order takes the units if they are free; otherwise the same as `Refund`.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Terms {
    /// Seconds after its confirmation by which an order must be paid: 1 to 2592000. `None`: no deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pay_within_s: Option<u32>,
    /// Whether users may buy again after their order ended unpaid or was refunded.
    pub rebuy: bool,
    /// What happens to a payment for an order that has ended.
    pub late_payment: LatePayment,
    /// Limits the attempts of one user. Repeats are not counted. `None`: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_rate: Option<Rate>,
    /// Limits the attempts of all users together. `None`: no limit.
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
