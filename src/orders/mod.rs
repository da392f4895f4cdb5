//! Changes to an order after it was accepted: paid, cancelled, expired, refunded; and where its units and its money
//! go.
//!
//! The database always comes first. The end of an order is committed, with a note that its units are owed to the
//! gate, before the gate may sell them again. In the opposite order, a late message could sell the unit twice. If the
//! process dies in between, the note stays, and maintenance returns the units.

mod changes;
mod expiry;
mod late_payments;
mod logged;
mod payment_batches;
mod payments;

pub use changes::{OrderError, Orders, Shown};
pub use expiry::Expiry;
pub use payment_batches::PaymentBatches;
pub use payments::{PaymentError, PaymentLog, Payments, Retried};
