//! Changes that are not in the order log yet.

use std::collections::{BTreeMap, BTreeSet};

use sea_orm::{
    ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};
use uuid::Uuid;

use super::entries::{act_entry, order_entries, payment_entry};
use crate::domain::{Entry, PaymentEntry, Place, SaleId};
use crate::store::entities::{log_outbox, order, payment_event, sale_act};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::{ACT, ORDER, PAYMENT, SALE, SEPARATOR};
use crate::store::many::is_one_of;
use crate::store::orders::read_order;

/// Changes that the log lacks, with their rows as they stand now.
#[derive(Debug, Default)]
pub struct Unlogged {
    /// The entries to append to the log.
    pub entries: Vec<Entry>,
    /// How far the database has come with their sales, at least.
    pub places: BTreeMap<SaleId, Place>,
    /// Pass these to [`Store::forget_logged`] once the log has the entries.
    pub ids: Vec<Uuid>,
    /// Changes that were read, with those that this build cannot log.
    pub read: u64,
    /// The last of them; nil if there were none.
    pub last: Uuid,
}

/// Changed payments, by provider and event. Thousands of them change within seconds, so they are read together.
type PaymentRows<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a log_outbox::Model>>>;

/// Changed orders, and those that a payment has changed.
type OrderRows<'a> = BTreeMap<Uuid, Vec<&'a log_outbox::Model>>;

impl Store {
    /// The oldest changes that the log lacks; [`StoreError::Behind`] if the database is behind. A row that was deleted
    /// since, with its sale, gets no entry.
    pub async fn unlogged(&self, limit: u64) -> Result<Unlogged, StoreError> {
        self.unlogged_after(Uuid::nil(), limit).await
    }

    /// The same, of the changes after this one: those that this build cannot log must not hide the others.
    pub async fn unlogged_after(&self, after: Uuid, limit: u64) -> Result<Unlogged, StoreError> {
        self.ensure_current().await?;
        self.within(async {
            let rows = log_outbox::Entity::find()
                .filter(log_outbox::Column::Id.gt(after))
                .order_by_asc(log_outbox::Column::Id)
                .limit(limit)
                .all(&self.db)
                .await?;
            let last = rows.last().map_or(after, |row| row.id);
            let mut unlogged = Unlogged { read: rows.len() as u64, last, ..Unlogged::default() };
            // Before the rows are read, so that no place is above its entries.
            let sales: BTreeSet<SaleId> = rows.iter().filter_map(|row| row.sale_id.parse().ok()).collect();
            unlogged.places = self.places_of(&Vec::from_iter(sales)).await?;
            let mut orders: OrderRows<'_> = BTreeMap::new();
            let mut payments: PaymentRows<'_> = BTreeMap::new();
            let (mut seen, mut unreadable) = (BTreeSet::new(), BTreeSet::new());
            for row in &rows {
                if row.kind == ORDER
                    && let Ok(id) = row.reference.parse()
                {
                    orders.entry(id).or_default().push(row);
                    continue;
                }
                if row.kind == PAYMENT
                    && let Some((provider, event)) = row.reference.split_once(SEPARATOR)
                {
                    payments.entry(provider).or_default().entry(event).or_default().push(row);
                    continue;
                }
                let of = (&row.kind, &row.sale_id, &row.reference);
                if seen.insert(of) {
                    match self.entry_of(row).await {
                        Ok(entry) => unlogged.entries.extend(entry),
                        Err(error @ StoreError::Broken(_)) => {
                            warn_unreadable(row, &error);
                            unreadable.insert(of);
                        }
                        Err(error) => return Err(error),
                    }
                }
                if !unreadable.contains(&of) {
                    unlogged.ids.push(row.id);
                }
            }
            self.add_rows(payments, orders, &mut unlogged).await?;
            Ok(unlogged)
        })
        .await
    }

    /// Adds the entries of orders and payments, and of the orders that the payments have changed, even if their own changes
    /// come later: a log that has a payment as applied, and not the order as paid, would bring back an order that its buyer
    /// has paid and that expires. All are read at one moment, for the same reason: the database may be set back meanwhile.
    async fn add_rows(
        &self,
        payments: PaymentRows<'_>,
        mut orders: OrderRows<'_>,
        unlogged: &mut Unlogged,
    ) -> Result<(), StoreError> {
        // As most of the time: the writer looks often.
        if payments.is_empty() && orders.is_empty() {
            return Ok(());
        }
        let snapshot = self.begin_snapshot().await?;
        let payments = payments_of(&snapshot, payments, unlogged).await?;
        for payment in &payments {
            for order in payment.new_order_id.iter().chain([&payment.order_id]) {
                orders.entry(order.uuid()).or_default();
            }
        }
        add_orders(&snapshot, orders, unlogged).await?;
        snapshot.rollback().await?;
        unlogged.entries.extend(payments.into_iter().map(Box::new).map(Entry::Payment));
        Ok(())
    }

    /// The entry of the row that has changed; `None` if it was deleted.
    async fn entry_of(&self, row: &log_outbox::Model) -> Result<Option<Entry>, StoreError> {
        let unreadable = || StoreError::unreadable("a reference of the log outbox", row);
        match row.kind.as_str() {
            SALE => Ok(self.sale_entry(&row.sale_id).await?.map(Box::new).map(Entry::Sale)),
            ACT => {
                let key = (row.sale_id.clone(), row.reference.clone());
                let act = sale_act::Entity::find_by_id(key).one(&self.db).await?;
                Ok(act.map(act_entry).transpose()?.map(Box::new).map(Entry::Act))
            }
            _ => Err(unreadable()),
        }
    }

    /// Removes changes from the outbox once the log has their entries. May be repeated.
    pub async fn forget_logged(&self, ids: &[Uuid]) -> Result<(), StoreError> {
        self.within(async {
            log_outbox::Entity::delete_many()
                .filter(is_one_of(&self.db, log_outbox::Column::Id, ids.iter().copied()))
                .exec(&self.db)
                .await?;
            Ok(())
        })
        .await
    }
}

/// The entries of these payments.
async fn payments_of(
    snapshot: &DatabaseTransaction,
    payments: PaymentRows<'_>,
    unlogged: &mut Unlogged,
) -> Result<Vec<PaymentEntry>, StoreError> {
    let mut entries = Vec::new();
    for (provider, mut events) in payments {
        let ids: Vec<String> = events.keys().map(|event| (*event).to_owned()).collect();
        let of_provider = payment_event::Entity::find().filter(payment_event::Column::Provider.eq(provider));
        let rows = of_provider
            .filter(is_one_of(snapshot, payment_event::Column::EventId, ids))
            .all(snapshot)
            .await?;
        for row in rows {
            let event = row.event_id.clone();
            match payment_entry(row) {
                Ok(entry) => entries.push(entry),
                Err(error) => {
                    let waiting = events.remove(event.as_str()).unwrap_or_default();
                    waiting.into_iter().for_each(|row| warn_unreadable(row, &error));
                }
            }
        }
        unlogged.ids.extend(events.into_values().flatten().map(|row| row.id));
    }
    Ok(entries)
}

async fn add_orders(
    snapshot: &DatabaseTransaction,
    mut orders: OrderRows<'_>,
    unlogged: &mut Unlogged,
) -> Result<(), StoreError> {
    let rows = match orders.is_empty() {
        true => Vec::new(),
        false => {
            let ids = orders.keys().copied();
            order::Entity::find().filter(is_one_of(snapshot, order::Column::Id, ids)).all(snapshot).await?
        }
    };
    let rows = rows.into_iter().filter_map(|row| {
        let id = row.id;
        let read = read_order(row);
        if let Err(error) = &read {
            let waiting = orders.remove(&id).unwrap_or_default();
            waiting.into_iter().for_each(|row| warn_unreadable(row, error));
        }
        read.ok()
    });
    let rows = rows.collect();
    unlogged.entries.extend(order_entries(snapshot, rows).await?);
    unlogged.ids.extend(orders.into_values().flatten().map(|row| row.id));
    Ok(())
}

/// A row that this build cannot read waits for a build that can, and holds up no other row.
fn warn_unreadable(row: &log_outbox::Model, error: &StoreError) {
    tracing::warn!(kind = row.kind, reference = row.reference, %error, "this build cannot log a changed row");
}
