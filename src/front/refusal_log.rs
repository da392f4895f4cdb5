//! Logs refusals of clients without a right, and failures, at a bounded rate: a flood of them must not fill the disk,
//! and the first of them must be found. The metric `front_problems_total` counts them all.

use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Lines a second of each kind.
const RATE: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// Refusals. Strangers can make as many as they like, so failures have a limit of their own.
static REFUSALS: LazyLock<Limit> = LazyLock::new(Limit::new);
static FAILURES: LazyLock<Limit> = LazyLock::new(Limit::new);

struct Limit {
    lines: DefaultDirectRateLimiter,
    left_out: AtomicU64,
}

impl Limit {
    fn new() -> Self {
        Self { lines: RateLimiter::direct(Quota::per_second(RATE)), left_out: AtomicU64::new(0) }
    }

    /// How many were left out before this one; `None` if it is left out as well.
    fn admit(&self) -> Option<u64> {
        if self.lines.check().is_ok() {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Logs one problem, if the rate allows it. No token, no claim and no body is ever logged.
pub(super) fn write(
    (status, code): (u16, &str),
    reason: &str,
    cause: &str,
    (request_id, trace_id): (&str, &str),
) {
    let limit = if status >= 500 { &FAILURES } else { &REFUSALS };
    let Some(left_out) = limit.admit() else { return };
    if status >= 500 {
        tracing::warn!(
            status,
            code,
            reason,
            cause,
            request_id,
            trace_id,
            left_out,
            "could not serve a request"
        );
    } else {
        tracing::info!(status, code, reason, request_id, trace_id, left_out, "refused a request");
    }
}
