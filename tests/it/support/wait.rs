//! Waiting for a fact, with a deadline.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

/// Asks every 10 ms until the answer is `Some`; after the deadline the test fails with what it was
/// waiting for.
pub async fn until<T>(what: &str, within: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    let mut ticks = interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "after {within:?} still not: {what}");
    }
}
