//! After an outage: accepted orders without a row get one, and a database that came back from a backup is
//! brought up to date. Replays are idempotent: entries that are already in place are left unchanged, so an
//! interrupted replay is simply run again.
//!
//! | source | holds | a replay |
//! | --- | --- | --- |
//! | `outbox` | orders that the gate accepted and that have no row | publishes them again |
//! | `dead-letters` | messages that no worker could process | publishes them again, a limited number of times |
//! | `log` | the order log, from a time or a message on | writes the rows as they were |
//! | `file` | the same entries as lines of a file, as [`export`] writes them | writes the rows as they were |

mod batch_size;
mod behind;
mod dead_letters;
mod ends_in_gate;
mod error;
mod export;
mod order_states;
mod outbox;
mod pacer;
mod parts;
mod queue_room;
mod reader;
mod report;
mod request;
mod restore;
mod rows;
mod run;
mod sales_in_gate;
mod survey;
mod work;
mod write;

pub use error::ReplayError;
pub use export::{ExportError, Exported, export};
pub use parts::{Progress, Replay};
pub use report::{Counts, Report};
pub use request::{Filter, ReplayRequest, Source};
pub use run::Finished;
