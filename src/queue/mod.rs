//! What carries an order from the fronts to the workers: RabbitMQ. The only place that names lapin.
//!
//! At least once: a message may come twice, so whoever takes it must be idempotent. A publish
//! without a confirm in time is unknown, not failed. Publishing and consuming have separate
//! connections, because a broker that is short of memory stops whoever publishes.

mod consumer;
mod dead_letters;
mod link;
mod log;
mod message;
mod publisher;
mod topology;

use std::time::Duration;

pub use consumer::{Consumer, Delivery};
pub use dead_letters::{DeadLetter, DeadLetters, HeldDeadLetter, HeldDeadLetters, Reason, Rejection};
pub use log::{LogFrom, LogHead, LogMessage, LogReader, OrderLog};
pub use message::{Unreadable, VERSION};
pub use publisher::{PublishError, Publisher};
pub use topology::Depths;

#[derive(Debug, Clone)]
pub struct QueueSettings {
    pub url: String,
    /// The first part of every exchange and queue name.
    pub prefix: String,
    /// How long connecting, and each answer of the broker to a publish, may take.
    pub timeout: Duration,
    /// Publishes without a confirm, at most.
    pub window: usize,
    /// Times that the broker delivers a message before it goes to the dead-letter queue.
    pub delivery_limit: u32,
    /// How long the order log remembers, at least until `log_bytes` are full.
    pub log_hours: u64,
    pub log_bytes: u64,
}

/// Can the URL be read? Says nothing of whether anybody answers there.
pub fn check_url(url: &str) -> Result<(), String> {
    url.parse::<lapin::uri::AMQPUri>().map(|_| ())
}

/// Why the broker cannot be used as configured.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct QueueError(String);

impl From<lapin::Error> for QueueError {
    fn from(error: lapin::Error) -> Self {
        Self(error.to_string())
    }
}
