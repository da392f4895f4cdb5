//! Wiring: configuration in, running process out; start, drain, stop.

pub mod config;
mod health;
mod listen;
pub mod log;
mod parts;
pub mod run;
pub mod signal;

pub use self::config::{Config, Mistakes, Sources, redact};
pub use listen::raise_file_limit;
pub use parts::{Parts, StartError};
pub use run::{Role, Running};
