//! What becomes of an order after it was accepted: paid, cancelled, expired, refunded; and where its
//! units and its money go.
//!
//! In every case the database comes first: the end of an order is committed, with a note that its units
//! are owed to the gate, before the gate may sell them again. In the other order a late message could
//! sell the unit twice. Whatever dies in between leaves the note, and the upkeep finishes it.

mod changes;
mod expiry;
mod payments;

pub use changes::{OrderError, Orders};
pub use expiry::expire;
pub use payments::{PaymentError, Payments};
