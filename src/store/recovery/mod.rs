//! The database's side of recovery: the outbox of the order log, rows restored from log entries, and replays.

mod announce;
mod backup;
mod entries;
mod insert_orders;
mod plan;
mod restore_act;
mod restore_orders;
mod restore_payments;
mod restore_sale;
mod runs;
mod sale_entries;
mod unlogged;
mod update_orders;
mod write_mode;

pub use plan::{Restore, Restored};
pub use restore_payments::RestoredPayments;
pub use runs::Run;
pub use sale_entries::PaymentPages;
pub use unlogged::Unlogged;
pub use write_mode::WriteMode;
