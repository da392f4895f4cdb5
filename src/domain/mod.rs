//! The domain's terms: sales, orders and verdicts, as values that are valid once they exist.
//!
//! All outside input passes through a constructor here before another module sees it. This module knows no server and
//! no protocol, and nothing in it depends on the time of day.

mod act_request;
mod entry;
mod event_type;
mod ids;
mod invalid;
mod millis;
mod order;
mod place;
mod sale;
mod terms;
mod terms_change;
mod trace_context;
mod verdict;

pub use act_request::ActRequest;
pub use entry::{ActEntry, Entry, ItemEntry, OrderEntry, PaymentEntry, SaleEntry, Step};
pub use event_type::{EventType, EventTypes, SaleEvent};
pub use ids::{Fingerprint, IdempotencyKey, KeyDigest, OrderId, SaleId, Sku, UserId};
pub use invalid::{Invalid, check_text};
pub use millis::{CLOCK_SKEW, Millis};
pub use order::{Act, Failure, Number, Order, OrderStatus};
pub use place::Place;
pub use sale::{Item, MAX_QUANTITY, MAX_STOCK, Sale, SaleState, Window};
pub use terms::{LatePayment, Rate, Terms};
pub use terms_change::TermsChange;
pub use trace_context::TraceContext;
pub use verdict::{Attempt, Durability, Limited, RateOf, Ticket, Verdict};
