//! Points in time, as Redis, the database and the wire agree on them.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Invalid;

/// A point in time: milliseconds since 1970-01-01T00:00:00Z. Shown as RFC 3339 in UTC, always with three decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(description = "RFC 3339 in UTC, with milliseconds.", extend("format" = "date-time"))]
pub struct Millis(pub i64);

/// The most by which the clocks of hosts and servers may differ. A reader that looks for a point in time in the order
/// log starts this much earlier.
pub const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// 9999-12-31T23:59:59.999Z: an RFC 3339 year has four digits.
const LAST: i64 = 253_402_300_799_999;

impl Millis {
    /// The host's clock. Not for decisions that belong to a server: Redis's clock decides whether a sale is open.
    pub fn now() -> Self {
        let since_epoch =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self(i64::try_from(since_epoch.as_millis()).unwrap_or(LAST))
    }

    /// This much later.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(LAST)))
    }

    /// This much earlier.
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(LAST)))
    }

    /// The time from `self` until `later`; zero if that is earlier.
    pub fn until(self, later: Millis) -> Duration {
        Duration::from_millis(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// Whole seconds from `self` until `later`, rounded up, at least 1: the value of `Retry-After`.
    pub fn seconds_until(self, later: Millis) -> u64 {
        u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0).div_ceil(1000).max(1)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clamped = self.0.clamp(0, LAST);
        let at = OffsetDateTime::from_unix_timestamp(clamped / 1000).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            at.year(),
            u8::from(at.month()),
            at.day(),
            at.hour(),
            at.minute(),
            at.second(),
            clamped % 1000,
        )
    }
}

impl std::str::FromStr for Millis {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = Invalid { what: "a time", rule: "RFC 3339, such as 2030-05-01T12:00:00Z" };
        let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| invalid.clone())?;
        let millis = i64::try_from(at.unix_timestamp_nanos() / 1_000_000).map_err(|_| invalid)?;
        Ok(Self(millis))
    }
}

impl TryFrom<String> for Millis {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<Millis> for String {
    fn from(at: Millis) -> String {
        at.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_with_milliseconds_and_read_back() {
        let at = Millis(1_700_000_000_007);
        assert_eq!(at.to_string(), "2023-11-14T22:13:20.007Z");
        assert_eq!(at.to_string().parse(), Ok(at));
        assert_eq!("2023-11-14T23:13:20.007+01:00".parse(), Ok(at));
        assert!("noon".parse::<Millis>().is_err());
    }

    #[test]
    fn retry_after_is_never_zero() {
        assert_eq!(Millis(0).seconds_until(Millis(1)), 1);
        assert_eq!(Millis(0).seconds_until(Millis(1001)), 2);
        assert_eq!(Millis(5000).seconds_until(Millis(0)), 1);
    }
}
