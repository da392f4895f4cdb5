//! A process: its configuration, its connections, its tasks, and how it starts and stops.
//!
//! It starts without waiting for a server: if it needed all three, it could not come back after a power cut before
//! all of them had. It refuses to start only if waiting would not help: a mistake in the configuration, an address
//! that is taken, a server whose settings can lose orders.

pub mod config;
mod listen;
mod live;
pub mod log;
mod metrics;
mod migrate;
mod parts;
mod running;
mod shared;
pub mod signal;
mod start;
mod tasks;

pub use self::config::{Config, Mistakes, Sources, redact};
pub use listen::raise_file_limit;
pub use migrate::{Migrated, migrate};
pub use parts::{Parts, StartError};
pub use running::{Role, Running};
pub use tasks::TaskEnded;
