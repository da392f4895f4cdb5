//! What becomes of an order after it was accepted: paid, cancelled, expired, refunded; and where its
//! units and its money go.
//!
//! In every case the database comes first: the end of an order is committed, with a note that its units
//! are owed to the gate, before the gate may sell them again. In the other order a late message could
//! sell the unit twice. Whatever dies in between leaves the note, and the upkeep finishes it.

mod deadline;
mod journal;
mod orders;
mod payments;
mod returns;
mod upkeep;

pub use journal::write_log;
pub use orders::{OrderError, Orders};
pub use payments::{PaymentError, Payments};
pub use returns::give_back;
pub use upkeep::{Due, Upkeep, UpkeepSettings};
