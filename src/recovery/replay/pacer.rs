//! How fast a replay may go: so many orders a second, and no faster than the database likes.

use std::time::{Duration, Instant};

use super::ReplayRequest;

pub(super) struct Pacer {
    rate: Option<u32>,
    max_latency: Duration,
    began: Instant,
    orders: u64,
}

impl Pacer {
    pub(super) fn new(asked: &ReplayRequest) -> Self {
        Self {
            rate: asked.rate,
            max_latency: Duration::from_millis(asked.max_latency_ms),
            began: Instant::now(),
            orders: 0,
        }
    }

    /// How long to wait after a batch of so many orders that took so long.
    pub(super) fn after(&mut self, orders: u64, took: Duration) -> Duration {
        self.orders += orders;
        let due = match self.rate {
            Some(rate) => Duration::from_secs_f64(self.orders as f64 / f64::from(rate)),
            None => Duration::ZERO,
        };
        let pace = due.saturating_sub(self.began.elapsed());
        // A database that is slow has others to serve.
        let slow = if took > self.max_latency { took } else { Duration::ZERO };
        pace.max(slow)
    }
}
