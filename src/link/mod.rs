//! Staying connected, whatever the server: delays between retries, batching, and the one way to reach Redis. It knows
//! nothing about the commands that are sent.

mod backoff;
mod channels;
mod error;
mod gather;
mod redis;

pub use self::redis::{NO_SCRIPT_RETRIES, RedisLink, RedisSettings, check_url};
pub use backoff::Backoff;
pub use channels::Channels;
pub use error::{Fault, InvalidUrl};
pub use gather::{Gather, call_together, work_together};
