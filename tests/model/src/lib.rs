//! A model of Doorbuster's protocol, checked exhaustively with `stateright`: every order of steps and faults within a
//! bound, not only those that a test or a drill happens to meet.
//!
//! A state is the three servers with the processes around them ([`state`]). A step is one script, one transaction or one
//! message ([`action`]); each names the file that it abstracts. What must hold is in [`properties`]. The configurations
//! ([`config`]) bound one model by budgets. [`mistakes`] can be planted, and the tests fail unless each is found.
//! `docs/model.md` has the results and the limits.

#![warn(missing_docs)]

pub mod action;
pub mod check;
pub mod config;
pub mod mistakes;
mod model;
mod process;
pub mod properties;
pub mod reach;
pub mod state;
mod steps;
mod tokens;
mod trace;
mod view;

pub use model::Protocol;
pub use trace::written;
