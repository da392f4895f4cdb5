//! What staying connected takes, whatever the server: delays between tries, and one way to reach
//! Redis. It knows nothing of what is said over a link.

mod backoff;
mod channels;
mod gather;
mod redis;

pub use self::redis::{Fault, InvalidUrl, NO_SCRIPT_RETRIES, RedisLink, RedisSettings, check_url};
pub use backoff::Backoff;
pub use channels::Channels;
pub use gather::{Gather, call_together, work_together};
