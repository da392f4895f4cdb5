//! Orders: their rows, counters, changes and sums.

mod backlog;
mod changes;
mod claim;
mod counters;
mod history;
mod insert;
mod locked_items;
mod new_rows;
mod older_epochs;
mod order_pages;
mod overdue;
mod read;
mod record;
mod refuse;
mod returns;
mod totals;
mod unrecorded;
mod write_changes;

pub use backlog::Backlog;
pub use changes::Changed;
pub(in crate::store) use claim::Refusal;
pub use claim::{Claim, Recorded};
pub(in crate::store) use counters::{lower_sold, raise_sold};
pub use history::OrderEvent;
pub(in crate::store) use new_rows::{FIRST_VERSION, confirmed_row};
pub use older_epochs::{OlderEpoch, OlderOrders};
pub use order_pages::OrderPages;
pub use overdue::OverdueOrder;
pub use read::OrderRow;
pub(in crate::store) use read::read_order;
pub use returns::Return;
pub(in crate::store) use returns::return_row;
pub use totals::{KnownTotals, SaleSnapshot, Totals};
pub use write_changes::Change;
