//! What is true for good: rows in SQLite, PostgreSQL or MySQL/MariaDB. The only place that names
//! sea-orm.
//!
//! The database is the last line. A unique key, the units of each user and a conditional stock
//! counter, all in the transaction that inserts the order, hold even if Redis forgets everything.

mod acts;
mod clock;
mod connect;
mod counted;
mod entities;
mod erase;
mod error;
mod events;
mod journal;
mod life;
mod many;
mod new_rows;
mod orders;
mod overdue;
mod payment_effects;
mod payments;
mod record;
mod refuse;
mod restore;
mod restore_sale;
mod restore_update;
mod returns;
mod runs;
mod sales;
mod terms;
mod totals;

use std::time::Duration;

use sea_orm::DatabaseConnection;

pub use acts::{ActState, BegunAct, NotBegun, Restock, SaleAct};
pub use connect::check_url;
pub use erase::Erased;
pub use error::StoreError;
pub use events::OrderEvent;
pub use journal::Unlogged;
pub use life::{Change, Changed};
pub use orders::{OlderEpoch, OrderRow};
pub use overdue::OverdueOrder;
pub use payment_effects::Applied;
pub use payments::{Payment, PaymentKind, PaymentState};
pub use record::{Claim, Recorded};
pub use restore::{Restore, Restored};
pub use restore_sale::WriteMode;
pub use returns::Return;
pub use runs::{Run, RunState};
pub use sales::{ItemRow, SaleRow};
pub use totals::{Backlog, SaleSnapshot, Totals};

#[derive(Debug, Clone)]
pub struct StoreSettings {
    pub url: String,
    pub connections: u32,
    /// How long one transaction or query may take, waiting for a connection included.
    pub timeout: Duration,
}

/// Cheap to clone; all clones share the pool.
#[derive(Clone)]
pub struct Store {
    db: DatabaseConnection,
    timeout: Duration,
}

impl Store {
    /// How long one transaction or query may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Runs a query or a transaction within the limit. sqlx waits for ever for a server that is
    /// silent; what is cut off here rolls back, or has committed: callers repeat with the same ids.
    async fn within<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|_| {
            Err(StoreError::Away(format!("no answer from the database within {:?}", self.timeout)))
        })
    }
}
