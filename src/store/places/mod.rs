//! The database's place in its own history: see [`Place`](crate::domain::Place).
//!
//! Every commit of a sale's changes advances the sale's place, and what other stores have witnessed of the places is
//! kept beside the pool. A database whose place is lower than a witness says has lost commits: nothing more is written
//! to it until a replay has brought it up to date and begun a new line.

mod advance;
mod check;
mod line;
mod log_position;

pub(in crate::store) use advance::advance;
pub(in crate::store) use check::place_of;
