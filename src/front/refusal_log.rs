//! Logs refusals of clients without a right, and failures, at a bounded rate: a flood of them must not fill the disk,
//! and the first of them must be found. The metric `front_problems_total` counts them all.

use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Lines a second.
const RATE: NonZeroU32 = NonZeroU32::new(10).unwrap();

static LIMIT: LazyLock<DefaultDirectRateLimiter> =
    LazyLock::new(|| RateLimiter::direct(Quota::per_second(RATE)));
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Logs one problem, if the rate allows it. No token, no claim and no body is ever logged.
pub(super) fn write(
    (status, code): (u16, &str),
    reason: &str,
    cause: &str,
    (request_id, trace_id): (&str, &str),
) {
    if LIMIT.check().is_err() {
        LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let left_out = LEFT_OUT.swap(0, Ordering::Relaxed);
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
