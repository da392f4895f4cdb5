//! The 4 ms rule: why a refusal from a front's cache never contradicts an earlier answer.
//!
//! A front may refuse a buyer from a cached reading of a sale, without asking the gate, while the reading is
//! younger than [`REFUSAL_MAX_AGE`], counted from the moment the front requested it. In return, a process that
//! changes a sale at the gate, or learns there of an order, waits for [`until_refusals_expire`] before it reports
//! that to anyone. By then every reading from before the change is too old to use. So no front answers "sold out"
//! to a buyer who knows of their order, or to anyone who knows that a restock is done.
//!
//! Each process measures its own span by its own monotonic clock; no two clocks are compared.

use std::time::Duration;

use tokio::time::Instant;

/// How long a front may refuse from a reading of a sale, counted from the moment it asked the gate.
pub const REFUSAL_MAX_AGE: Duration = Duration::from_millis(4);

/// Minimum time between two readings of a sale by one front: well below [`REFUSAL_MAX_AGE`], so that the next reading
/// arrives before the last is too old.
pub const REFUSAL_PACE: Duration = Duration::from_millis(2);

/// Returns once no front can still refuse by a state of the sale from before the gate's reply at `heard`. Call it with
/// the time of that reply, before reporting its news outside this process.
pub async fn until_refusals_expire(heard: Instant) {
    tokio::time::sleep_until(heard + REFUSAL_MAX_AGE).await;
}
