//! Durable state: rows in SQLite, PostgreSQL or MySQL/MariaDB. The only module that names sea-orm.
//!
//! The database is the last line of defence. A unique key, a counter of each user's units and a conditional
//! stock counter hold in the transaction that inserts an order, even if Redis forgets everything.
//!
//! [`Store`] is the handle; its methods live next to the rows that they read and write. The folders depend on
//! each other in one direction: `places` and `sales`, then `orders`, `payments` and `recovery`.

mod clock;
mod connect;
mod entities;
mod error;
mod examine;
mod halves;
mod handle;
mod installation;
mod live_settings;
mod log_outbox;
mod many;
mod operator_acts;
mod orders;
mod payments;
mod permits;
mod places;
mod pooler;
mod recovery;
mod required_settings;
mod sales;
mod session;
mod states;
mod transaction;
mod webhooks;
mod witnesses;

pub use connect::{UnreadableUrl, check_url};
pub use error::StoreError;
pub use examine::{DatabaseFacts, missing_file};
pub use halves::Halves;
pub use handle::{Store, StoreSettings};
pub use live_settings::LiveSetting;
pub use operator_acts::{BegunOperatorAct, OperatorAct};
pub use orders::{
    Backlog, Change, Changed, Claim, KnownTotals, OlderEpoch, OlderOrders, OrderEvent, OrderPages, OrderRow,
    OverdueOrder, Recorded, Return, SaleSnapshot, Totals,
};
pub use payments::{Applied, Applying, NewPayment, Payment};
pub use permits::READERS;
pub use recovery::{PaymentPages, Restore, Restored, RestoredPayments, Run, Unlogged, WriteMode};
pub use sales::{
    BegunAct, Erased, Erasure, ItemRow, NotBegun, Purged, Restock, SaleAct, SaleNumber, SaleRow,
};
pub use states::{ActState, PaymentKind, PaymentState, RunState};
pub use transaction::MayCommit;
pub use webhooks::{Endpoint, EndpointState, NotTaken, Undelivered, WebhookDelivery};
pub use witnesses::{Behind, Heard, NotHeard};
