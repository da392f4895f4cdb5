//! Waiting for a fact, with a deadline.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

/// Calls `ask` every 10 ms until it returns `Some`. After the deadline the test fails, and the message says what it
/// waited for.
pub async fn until<T>(what: &str, within: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    let mut ticks = interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "after {within:?} still waiting for: {what}");
    }
}
