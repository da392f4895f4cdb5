//! How far a server's clock is off from this host's.

use std::time::Duration;

use super::finding::Findings;
use crate::domain::Millis;

/// The same tolerance as in `sale check`.
const TOLERANCE: Duration = Duration::from_millis(250);

/// The clock was read at some moment between `before` and `after`, so network latency does not count as an offset.
pub(super) fn compare(findings: &mut Findings, before: Millis, clock: Millis, after: Millis) {
    let off = (before.0 - clock.0).max(clock.0 - after.0).max(0);
    let found = format!("off by {off} ms from this host's");
    if u128::try_from(off).is_ok_and(|off| off <= TOLERANCE.as_millis()) {
        findings.ok("clock", found);
    } else {
        findings.amiss("clock", found, "run a time service, such as chrony, on each host");
    }
}
