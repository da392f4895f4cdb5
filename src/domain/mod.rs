//! What the words mean: sales, orders and verdicts as values that are valid once they exist.
//!
//! Everything from outside passes through a constructor here before another module sees it. This
//! module refuses to know any server, any protocol and the time of day.

mod ids;
mod millis;
mod order;
mod sale;
mod verdict;

pub use ids::{Fingerprint, IdempotencyKey, Invalid, KeyDigest, OrderId, SaleId, Sku, UserId};
pub use millis::Millis;
pub use order::{Failure, Number, Order, OrderStatus};
pub use sale::{Item, MAX_QUANTITY, Sale, SaleState, Window};
pub use verdict::{Attempt, Durability, Ticket, Verdict};
