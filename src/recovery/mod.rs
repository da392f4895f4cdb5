//! What puts the books right again: an order that the gate does not know is adopted, what differs is
//! compared and mended, a gate that lost writes is rebuilt.
//!
//! In each case the database comes first and is never changed to please the gate, but for one row: a
//! reservation that nobody knows of gets a row in a final state before its units go back, so that a late
//! message meets it.

mod compare;
mod rebuild;
mod repair;
pub mod replay;

pub use compare::{Comparison, Difference, DifferenceKind, compare};
pub use rebuild::{Gathered, Loaded, Rebuild, RebuildError, Rebuilding, Rebuilt};
pub use repair::{Repair, RepairError, Repaired};
