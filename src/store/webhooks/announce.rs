//! Writing down that an order has reached a state, in the transaction of the change.

use std::sync::atomic::Ordering;

use sea_orm::{ActiveValue::Set, DatabaseTransaction};

use crate::domain::{Millis, OrderId, OrderStatus};
use crate::store::entities::webhook_event;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::{OnExisting, insert_many};

/// A state that an order has reached.
pub(in crate::store) struct Reached<'a> {
    pub(in crate::store) order: OrderId,
    /// The version of its row.
    pub(in crate::store) version: i32,
    pub(in crate::store) sale: &'a str,
    pub(in crate::store) status: OrderStatus,
    pub(in crate::store) at: Millis,
}

impl Store {
    /// Whether this process writes down what its changes lead to. It does, until it is known that no endpoint is on.
    pub fn announce_to_webhooks(&self, announces: bool) {
        self.announces.store(announces, Ordering::Relaxed);
    }

    /// Whether it does.
    pub fn announces_to_webhooks(&self) -> bool {
        self.announces.load(Ordering::Relaxed)
    }

    /// Writes down states for the endpoints. Call it in the transaction of the change. A repeat is ignored.
    pub(in crate::store) async fn announce(
        &self,
        transaction: &DatabaseTransaction,
        reached: impl IntoIterator<Item = Reached<'_>>,
    ) -> Result<(), StoreError> {
        if !self.announces_to_webhooks() {
            return Ok(());
        }
        let row = |reached: Reached<'_>| webhook_event::ActiveModel {
            order_id: Set(reached.order.uuid()),
            version: Set(reached.version),
            sale_id: Set(reached.sale.to_owned()),
            status: Set(reached.status.as_str().to_owned()),
            at_ms: Set(reached.at.0),
        };
        let rows: Vec<_> = reached.into_iter().map(row).collect();
        let existing = OnExisting {
            conflict: self.skip_existing(webhook_event::Column::OrderId),
            postgres: "(order_id, version) DO NOTHING",
        };
        insert_many(transaction, rows, &existing).await?;
        Ok(())
    }
}
