//! Has the order log get a change before it is answered, so that a database which loses its last commits does not undo an
//! answer.

use std::collections::HashSet;
use std::time::Duration;

use crate::domain::{Entry, OrderId, SaleId};
use crate::queue::{OrderLog, QueueError};
use crate::store::{OrderRow, Payment, Store, StoreError};

/// How long an answer waits for the confirm, for which a healthy broker needs milliseconds. Providers wait between five and
/// thirty seconds for an answer.
const LOG_WITHIN: Duration = Duration::from_secs(3);

/// Why the order log may lack a change.
pub(super) enum NotLogged {
    /// The rows could not be read, or the database has lost the change.
    Store(StoreError),
    /// The broker did not confirm it.
    Log(QueueError),
}

impl From<StoreError> for NotLogged {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// An order log, and the database from which it is written.
pub(super) struct Logging<'a> {
    pub(super) store: &'a Store,
    pub(super) log: &'a OrderLog,
}

impl Logging<'_> {
    /// On `Ok` the order log has these payments of one sale, every other payment event of their orders, and the orders as
    /// they are. The log writer appends all of it again later, with everything else that has changed.
    pub(super) async fn append(&self, sale: &SaleId, payments: &[Payment]) -> Result<(), NotLogged> {
        // Nothing is read in vain: while the broker is away, providers and buyers send every request again and again.
        self.log.ensure_up().map_err(NotLogged::Log)?;
        // Before the rows are read, so that no place is above its entries.
        let places = self.store.places_of(std::slice::from_ref(sale)).await?;
        let orders: Vec<OrderId> = payments.iter().map(|payment| payment.order).collect();
        let entries = self.store.payment_entries(&orders).await?;
        let recorded: HashSet<(&str, &str)> = entries.iter().filter_map(event_of).collect();
        if !payments.iter().all(|payment| recorded.contains(&(&*payment.provider, &*payment.event_id))) {
            return Err(lost().into());
        }
        self.log.append_within(LOG_WITHIN, &entries, &places).await.map_err(NotLogged::Log)
    }
}

/// On `Ok` the order log has this change, which was asked for; or the broker is away or slow, and the log writer appends it
/// later. The change is answered all the same then: a buyer who cancels should not wait for the broker.
pub(super) async fn log_change(store: &Store, log: &OrderLog, row: &OrderRow) -> Result<(), StoreError> {
    match append_change(store, log, row).await {
        Ok(()) => Ok(()),
        Err(NotLogged::Store(error)) => Err(error),
        Err(NotLogged::Log(error)) => {
            metrics::counter!("doorbuster_orders_changed_unlogged_total").increment(1);
            tracing::debug!(order_id = %row.order.id, %error, "a change was answered before the order log had it");
            Ok(())
        }
    }
}

async fn append_change(store: &Store, log: &OrderLog, row: &OrderRow) -> Result<(), NotLogged> {
    log.ensure_up().map_err(NotLogged::Log)?;
    let places = store.places_of(std::slice::from_ref(&row.order.sale)).await?;
    let mut entries = store.entries_of(std::slice::from_ref(row)).await?;
    for entry in &mut entries {
        let Entry::Order(entry) = entry else { continue };
        // A later change may have come in between, and appends itself.
        entry.history.retain(|step| step.version <= row.version);
        if entry.history.last().is_none_or(|last| last.to != row.status) {
            return Err(lost().into());
        }
    }
    log.append_within(LOG_WITHIN, &entries, &places).await.map_err(NotLogged::Log)
}

/// The provider and id of a payment event's entry.
fn event_of(entry: &Entry) -> Option<(&str, &str)> {
    let Entry::Payment(event) = entry else { return None };
    Some((&event.provider, &event.event_id))
}

fn lost() -> StoreError {
    StoreError::Away("the database has lost the change".into())
}
