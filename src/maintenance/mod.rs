//! All that happens though nobody asks, each under its own lease, so that one process of all does it.

mod adopter;
mod books_check;
mod dead_letter_marks;
mod leader;
mod log_writer;
mod rebuilder;
mod restart_check;
mod rounds;
mod schedule;
mod sweep;

pub use adopter::Adopter;
pub use books_check::BooksCheck;
pub use log_writer::write_log;
pub use rebuilder::Rebuilder;
pub use restart_check::{RestartCheck, verify};
pub use rounds::{MaintenanceSettings, Rounds};
pub use schedule::{ScheduledTask, schedule};
pub use sweep::{Sweep, SweepSettings};
