//! One buyer's request, from admission to a true answer: the gate decides, the relay publishes the order to the
//! broker, and gate and database give its status.
//!
//! This module knows no HTTP. Every answer that a buyer can expect is a variant of [`Answer`].

mod answer;
mod completeness;
mod core;
mod known_sales;
mod order_view;
mod place;
mod refusal_cache;
mod relay;
mod row_reader;
mod sale_cache;
mod shared_poll;
mod status;

pub use self::core::{DurabilityPolicy, Intake, IntakeSettings};
pub use answer::{Answer, OrderRequest};
pub use completeness::{ensure_complete, ensure_current_in, ensure_none_is_held};
pub use known_sales::SaleUnknown;
pub use order_view::{OrderView, StatusUnknown};
pub use relay::Relay;
pub use sale_cache::{KnownSale, SaleCache};
