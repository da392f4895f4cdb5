//! Staying connected, whatever the server: delays between retries, batching, the installation that a server belongs to,
//! and the one way to reach Redis. It knows nothing about the commands that are sent.

mod backoff;
mod channels;
mod error;
mod gather;
mod installation;
mod keyed_batches;
mod listener;
mod redis;
mod script;

pub use self::redis::{Member, NO_SCRIPT_RETRIES, RedisLink, RedisSettings, check_url};
pub use backoff::Backoff;
pub use error::{Fault, InvalidUrl, with_causes};
pub use gather::{Gather, call_together, work_together};
pub use installation::{
    BROKER, DATABASE, Installation, InstallationId, NoInstallationId, OtherInstallation, REDIS,
    UNKNOWN_INSTALLATION,
};
pub use keyed_batches::KeyedBatches;
pub use listener::{Listener, listen};
pub use script::Script;
