//! How far a server's clock is off from this host's.

use super::finding::Findings;
use crate::control::CLOCK_TOLERANCE;
use crate::domain::Millis;

/// The clock was read at some moment between `before` and `after`, so that the journey of the answer does not count.
pub(super) fn compare(findings: &mut Findings, before: Millis, clock: Millis, after: Millis) {
    let off = (before.0 - clock.0).max(clock.0 - after.0).max(0);
    let found = format!("off by {off} ms from this host's");
    if u128::try_from(off).is_ok_and(|off| off <= CLOCK_TOLERANCE.as_millis()) {
        findings.ok("clock", found);
    } else {
        findings.amiss("clock", found, "run a time service, such as chrony, on each host");
    }
}
