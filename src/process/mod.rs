//! Wiring: configuration in, running process out; start, drain, stop.

pub mod command;
mod config;
mod due;
mod health;
mod listen;
mod log;
mod parts;
mod run;
mod signal;
mod trust;

pub use self::config::{Config, Mistakes, Sources, redact};
pub use listen::raise_file_limit;
pub use parts::{Parts, StartError};
pub use run::{Role, Running};
