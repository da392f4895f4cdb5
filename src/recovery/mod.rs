//! Recovery after an outage, run by an operator: bring the database up to date ([`replay`]), restore a gate that lost
//! writes ([`Rebuild`]), find the orders that differ ([`compare`]) and repair them ([`Repair`]).
//!
//! The database comes first and is never changed to match the gate, with one exception: an order that only the gate
//! knows gets a row in a final state before its units go back, so that a late message finds that row.
//!
//! [`log_begins_at`] says how old a backup may be.
//!
//! Every function here may be repeated, and a sale may stay open meanwhile.

mod compare;
mod reach;
mod rebuild;
mod repair;
pub mod replay;
mod retry;

pub use compare::{Compare, Comparison, Difference, DifferenceKind, MOST_SUSPECTS, compare};
pub use reach::{ReachError, log_begins_at, log_needed_from};
pub use rebuild::{
    Forgotten, Gathered, Loaded, Rebuild, RebuildError, Rebuilding, Rebuilt, was_rebuilt_completely,
};
pub use repair::{Repair, RepairError, Repaired};
