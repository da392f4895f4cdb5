//! Who gets a unit? The gate decides atomically in Redis: one script checks sale window, repeats, limits and stock,
//! and writes each accepted order to the outbox.
//!
//! An order stays in the outbox from admission until its row is committed. So the outbox lists the orders in
//! flight, and a broker that loses its data loses no order. This module knows neither the broker nor the database.

mod admission;
mod batcher;
mod belief;
mod clock;
mod core;
mod describe;
mod error;
mod examine;
mod fields;
mod holdings;
mod keys;
mod open;
mod order_changes;
mod outbox;
mod reader;
mod rebuild;
mod refusal_age;
mod repair;
mod required_settings;
mod restart;
mod sale;
mod scan;
mod scripts;
mod settle;
mod tries;
mod wire;
mod witness;

pub use self::core::{Gate, GateSettings};
pub use belief::InFlight;
pub use clock::ClockReading;
pub use describe::GateSale;
pub use error::GateError;
pub use examine::RedisFacts;
pub use fields::GateItem;
pub use holdings::{Holding, HoldingPages};
pub use order_changes::{Following, OrderChanges};
pub use reader::{SaleReader, SaleReading};
pub use rebuild::{RebuildStart, RebuiltHolding, RebuiltItem, RebuiltSale};
pub use refusal_age::{REFUSAL_MAX_AGE, REFUSAL_PACE, until_refusals_expire};
pub use repair::Adjusted;
pub use sale::{Loaded, Moved, Restocked, Unloaded, Versions};
pub use settle::{Outcome, Settlement};
