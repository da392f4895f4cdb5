//! Work that runs unattended: every front is ready to do it, and leases ensure that only one does.
//!
//! Reading order: `leader` decides which process works. `sweep` looks after orders that have no row yet, `log_writer`
//! after the order log, and `rounds` after everything that comes due later, each as a continuous leader. `books_check`
//! and `adopter` compare the books at intervals, one look at a time. `rebuilder` rebuilds frozen gates where the
//! configuration allows it; `restart_check` compares the books after a restart of Redis, and until then
//! keeps it from selling. `retention` erases names and purges old sales.
//! `webhooks` gives endpoints what happened to orders. `place_check` notices
//! in every process that the database has gone back in time.
//!
//! All of it is idempotent. A process that dies in the middle leaves work that the next one finds.

mod adopter;
mod books_check;
mod dead_letter_marks;
mod error;
mod leader;
mod log_position;
mod log_reach;
mod log_writer;
mod place_check;
mod rebuilder;
mod restart_check;
mod retention;
mod rounds;
mod schedule;
mod sweep;
mod webhooks;

pub use adopter::Adopter;
pub use books_check::BooksCheck;
pub use error::MaintenanceError;
pub use log_reach::log_reach;
pub use log_writer::{LogWriter, write_last_entries, write_log};
pub use place_check::PlaceCheck;
pub use rebuilder::Rebuilder;
pub use restart_check::{Comparison, NotCompared, RestartCheck};
pub use retention::Retention;
pub use rounds::{MaintenanceSettings, PAYMENTS, Rounds};
pub use schedule::{ScheduledTask, schedule};
pub use sweep::{Sweep, SweepSettings};
pub use webhooks::Webhooks;
