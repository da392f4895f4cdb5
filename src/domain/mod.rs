//! What the words mean: sales, orders and verdicts as values that are valid once they exist.
//!
//! Everything from outside passes through a constructor here before another module sees it. This
//! module refuses to know any server, any protocol and the time of day.

mod asked;
mod entry;
mod ids;
mod millis;
mod order;
mod rules;
mod sale;
mod verdict;

pub use asked::Asked;
pub use entry::{ActEntry, Entry, ItemEntry, OrderEntry, PaymentEntry, SaleEntry, Step};
pub use ids::{Fingerprint, IdempotencyKey, Invalid, KeyDigest, OrderId, SaleId, Sku, UserId};
pub use millis::Millis;
pub use order::{Act, Failure, Number, Order, OrderStatus};
pub use rules::{Amendment, LatePayment, Rate, Rules, check_text};
pub use sale::{Item, MAX_QUANTITY, MAX_STOCK, Sale, SaleState, Window};
pub use verdict::{Attempt, Durability, Limited, Ticket, Verdict};
