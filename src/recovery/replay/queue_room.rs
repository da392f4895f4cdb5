//! Backpressure: nothing is published while the queue is too long.

use std::time::{Duration, Instant};

use super::error::ReplayError;
use super::work::Work;

/// How often the depth of the queue is checked while it is too long.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// The broker's depths are at most this old.
const DEPTH_AGE: Duration = Duration::from_secs(6);

impl Work<'_> {
    /// Waits until the queue is short enough to publish `orders` more. `false`: it is time to stop.
    pub(super) async fn room_in_the_queue(&mut self, orders: usize) -> Result<bool, ReplayError> {
        let mut said = false;
        while self.run.is_some() && !self.stop.is_cancelled() {
            // The depth may not include orders that were published since it was read.
            self.published.retain(|(at, _)| at.elapsed() < DEPTH_AGE);
            let since: u64 = self.published.iter().map(|(_, orders)| orders).sum();
            let depth = self.replay.publisher.depths().map(|depths| u64::from(depths.orders) + since);
            match depth {
                Some(depth) if depth <= u64::from(self.request.max_queue) => {
                    self.published.push_back((Instant::now(), orders as u64));
                    break;
                }
                Some(depth) if !std::mem::replace(&mut said, true) => {
                    (self.progress.say)(&format!("waiting: about {depth} orders are in the queue"));
                }
                None if !std::mem::replace(&mut said, true) => {
                    (self.progress.say)("waiting: the broker is unavailable");
                }
                _ => {}
            }
            self.pause(CHECK_EVERY).await?;
        }
        Ok(!self.stop.is_cancelled())
    }
}
