//! RabbitMQ carries orders from the fronts to the workers. This is the only module that knows lapin.
//!
//! Delivery is at least once: a message may come twice, so its consumer must be idempotent. A publish without a
//! confirm in time is in doubt, not failed. Publishing and consuming have separate connections, because a broker that
//! is short of memory blocks connections that publish.
//!
//! Reading order: `topology` declares the queues, `message` is what they carry, `publisher` and `consumer` are the two
//! ends, `dead_letters` keeps what no worker could process, and `log` is the order log.

mod consumer;
mod dead_letter;
mod dead_letters;
mod delivery;
mod examine;
mod headers;
mod link;
mod message;
mod order_log;
mod prefetch;
mod publisher;
mod quiet;
mod topology;
mod unserved;

use std::time::Duration;

pub use consumer::{Consumer, Consuming};
pub use dead_letter::{DeadLetter, Reason, Rejection};
pub use dead_letters::{DeadLetters, HeldDeadLetter, HeldDeadLetters};
pub use delivery::Delivery;
pub use examine::{BrokerFacts, QueueFacts, examine};
pub use link::{declare_topology, join_installation};
pub use message::{Traces, Unreadable, VERSION};
pub use order_log::{LogFrom, LogHead, LogMessage, LogReader, OrderLog};
pub use prefetch::Amount;
pub use publisher::{PublishError, Publisher};
pub use topology::Depths;

use crate::link::Installation;

/// Where the broker is, and its limits.
#[derive(Debug, Clone)]
pub struct QueueSettings {
    /// `amqp://` or `amqps://`, with credentials and virtual host.
    pub url: String,
    /// The first part of every exchange and queue name.
    pub prefix: String,
    /// How long connecting may take, and each reply of the broker.
    pub timeout: Duration,
    /// Maximum unconfirmed messages of a publisher.
    pub window: usize,
    /// How often the broker delivers a message before it goes to the dead-letter queue.
    pub delivery_limit: u32,
    /// How long the order log keeps a message, in hours. It deletes older ones, and earlier if `log_bytes` are full.
    pub log_hours: u64,
    /// The size of the order log, in bytes.
    pub log_bytes: u64,
    /// The installation that the broker must belong to, if that is checked.
    pub installation: Installation,
}

/// Checks the syntax of a URL. Does not connect.
pub fn check_url(url: &str) -> Result<(), QueueError> {
    url.parse::<lapin::uri::AMQPUri>().map(|_| ()).map_err(QueueError)
}

/// The broker could not be used: it did not answer, refused, or is configured differently. Retrying may help.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct QueueError(String);

impl From<lapin::Error> for QueueError {
    fn from(error: lapin::Error) -> Self {
        Self(error.to_string())
    }
}
