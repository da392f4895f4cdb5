//! How fast a replay may go: a limit of orders per second, and slower while the database is slow.

use std::time::{Duration, Instant};

use super::request::ReplayRequest;

pub(super) struct Pacer {
    rate: Option<u32>,
    max_latency: Duration,
    began: Instant,
    orders: u64,
}

impl Pacer {
    pub(super) fn new(request: &ReplayRequest) -> Self {
        Self {
            rate: request.rate,
            max_latency: Duration::from_millis(request.max_latency_ms),
            began: Instant::now(),
            orders: 0,
        }
    }

    /// The pause after a batch of `orders` that took `took`.
    pub(super) fn after(&mut self, orders: u64, took: Duration) -> Duration {
        self.orders += orders;
        let earliest = match self.rate {
            Some(rate) => Duration::from_secs_f64(self.orders as f64 / f64::from(rate)),
            None => Duration::ZERO,
        };
        let pace = earliest.saturating_sub(self.began.elapsed());
        // A slow database has other clients to serve, so leave it half of the time.
        let slow = if took > self.max_latency { took } else { Duration::ZERO };
        pace.max(slow)
    }
}
