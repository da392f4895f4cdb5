//! A queue that the broker has lost, but not its name: RabbitMQ that is killed while a quorum queue is deleted or declared can
//! come back with a queue that it cannot start. Publishing to it is never confirmed, and every attempt to consume ends with
//! an internal error, until the queue is deleted.

use std::time::Duration;

use tokio::time::Instant;

use super::QueueSettings;
use super::link::Link;
use super::topology;

/// How long the broker may fail to serve a queue: longer than it needs to elect a leader.
const LONGEST: Duration = Duration::from_secs(15);

/// Since when the broker has not served the queue.
#[derive(Default)]
pub(super) struct Unserved(Option<Instant>);

impl Unserved {
    /// Learns why an attempt to consume failed. Returns whether the broker has failed to serve the queue for so long that
    /// waiting does not help; then it counts from the beginning.
    pub(super) fn lasts(&mut self, error: &str, now: Instant) -> bool {
        if !error.contains("INTERNAL-ERROR") {
            self.0 = None;
            return false;
        }
        let since = *self.0.get_or_insert(now);
        let lasts = now - since >= LONGEST;
        if lasts {
            self.0 = None;
        }
        lasts
    }

    /// The queue is served.
    pub(super) fn is_over(&mut self) {
        self.0 = None;
    }
}

/// Has the broker make the queue of orders again. Goes on if the caller stops waiting; if it ends half way, the next
/// connection declares the queue.
pub(super) async fn remake_queue(settings: &QueueSettings) {
    let of_task = settings.clone();
    let mut remaking = Link::opening(settings, "worker", move |channel| async move {
        topology::remake_orders(&channel, &of_task).await
    });
    match remaking.done().await {
        Ok((link, remade)) => {
            if remade {
                tracing::warn!(
                    "the broker did not serve the queue of orders: it was deleted and declared again, and the sweep \
                     publishes what has waited"
                );
            }
            link.close().await;
        }
        Err(error) => tracing::error!(
            %error,
            "the broker does not serve the queue of orders, and it could not be made again: see \
             docs/runbook.md#orderswaittoolong"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_internal_errors_that_last_without_another_in_between_count() {
        let (mut unserved, begin) = (Unserved::default(), Instant::now());
        let error = "protocol error: AMQP hard error: INTERNAL-ERROR: INTERNAL_ERROR";
        let just_before = begin + LONGEST - Duration::from_millis(1);
        assert!(!unserved.lasts(error, begin) && !unserved.lasts(error, just_before));
        assert!(!unserved.lasts("connection refused", just_before), "the broker is away");
        assert!(!unserved.lasts(error, begin + LONGEST), "it counts from the beginning");
        assert!(unserved.lasts(error, begin + 2 * LONGEST));
        assert!(!unserved.lasts(error, begin + 2 * LONGEST), "once");
    }
}
