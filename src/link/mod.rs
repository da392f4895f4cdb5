//! Staying connected, whatever the server: delays between retries, batching, the installation that a server belongs to,
//! the one way to reach Redis, and that to post to other systems. It knows nothing about what is sent.

mod backoff;
mod channels;
mod error;
mod gather;
mod installation;
mod keyed_batches;
mod listener;
mod pinned;
mod post;
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
pub use pinned::Pinned;
pub use post::{PostError, Poster, Reach};
pub use script::Script;
