//! Rows as entries of the order log.

use std::collections::BTreeMap;

use sea_orm::{ColumnTrait as _, ConnectionTrait, EntityTrait as _, QueryFilter as _, QueryOrder as _};
use uuid::Uuid;

use crate::domain::{ActEntry, Entry, ItemEntry, Millis, OrderEntry, OrderId, PaymentEntry, SaleEntry, Step};
use crate::store::entities::{item, order, order_event, payment_event, sale, sale_act};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::orders::{OrderRow, read_order};
use crate::store::sales::read_sale;

impl Store {
    /// These orders with their histories, as entries.
    pub async fn entries_of(&self, rows: &[OrderRow]) -> Result<Vec<Entry>, StoreError> {
        self.within(order_entries(&self.db, rows.to_vec())).await
    }

    /// What the order log must have so that no payment event of these orders, and nothing that they have changed, is lost
    /// with the database's last commits: the orders that they have changed, then the events. All are read at one moment:
    /// a database that is restored in between would have the events and not what they have changed.
    pub async fn payment_entries(&self, orders: &[OrderId]) -> Result<Vec<Entry>, StoreError> {
        let paid: Vec<Uuid> = orders.iter().map(|order| order.uuid()).collect();
        self.within(async {
            let snapshot = self.begin_snapshot().await?;
            let payments = payment_event::Entity::find()
                .filter(is_one_of(&snapshot, payment_event::Column::OrderId, paid.iter().copied()))
                .order_by_asc(payment_event::Column::ReceivedAtMs)
                .all(&snapshot)
                .await?;
            let changed = payments.iter().filter_map(|payment| payment.new_order_id).chain(paid);
            let orders = order::Entity::find().filter(is_one_of(&snapshot, order::Column::Id, changed));
            let orders = orders.all(&snapshot).await?.into_iter().map(read_order);
            let mut entries = order_entries(&snapshot, orders.collect::<Result<_, _>>()?).await?;
            snapshot.rollback().await?;
            for payment in payments {
                entries.push(Entry::Payment(Box::new(payment_entry(payment)?)));
            }
            Ok(entries)
        })
        .await
    }

    /// A sale's entry; `None` if there is no such sale.
    pub(super) async fn sale_entry(&self, id: &str) -> Result<Option<SaleEntry>, StoreError> {
        let Some(row) = sale::Entity::find_by_id(id).one(&self.db).await? else { return Ok(None) };
        let items = item::Entity::find()
            .filter(item::Column::SaleId.eq(id))
            .order_by_asc(item::Column::Sku)
            .all(&self.db)
            .await?;
        let row = read_sale(row, items)?;
        let items = row.items.iter().zip(&row.sale.items).map(|(row, item)| ItemEntry {
            sku: row.sku.clone(),
            stock: row.stock,
            version: row.version,
            limit_per_user: item.limit_per_user,
        });
        Ok(Some(SaleEntry {
            items: items.collect(),
            sale_id: row.sale.id,
            name: row.sale.name,
            state: row.state,
            number: row.number,
            window: row.sale.window,
            limit_per_user: row.sale.limit_per_user,
            terms: row.sale.terms,
            terms_version: row.terms_version,
            created_at: row.created_at,
        }))
    }
}

/// The entries of orders, with their histories.
pub(super) async fn order_entries(
    connection: &impl ConnectionTrait,
    rows: Vec<OrderRow>,
) -> Result<Vec<Entry>, StoreError> {
    let ids: Vec<Uuid> = rows.iter().filter(|row| row.version > 0).map(|row| row.order.id.uuid()).collect();
    let mut histories: BTreeMap<Uuid, Vec<Step>> = BTreeMap::new();
    if !ids.is_empty() {
        let events = order_event::Entity::find()
            .filter(is_one_of(connection, order_event::Column::OrderId, ids))
            .order_by_asc(order_event::Column::Version)
            .all(connection)
            .await?;
        for row in events {
            let unreadable = |_| StoreError::unreadable("an order's event", &row);
            histories.entry(row.order_id).or_default().push(Step {
                version: row.version,
                from: row.from_status.parse().map_err(unreadable)?,
                to: row.to_status.parse().map_err(unreadable)?,
                by: row.actor.clone(),
                reason: row.reason.clone(),
                at: Millis(row.at_ms),
            });
        }
    }
    let entries = rows.into_iter().map(|row| {
        Entry::Order(Box::new(OrderEntry {
            history: histories.remove(&row.order.id.uuid()).unwrap_or_default(),
            order: row.order,
            status: row.status,
            failure: row.failure,
            version: row.version,
            recorded_at: row.recorded_at,
            updated_at: row.updated_at,
            pay_by: row.pay_by,
        }))
    });
    Ok(entries.collect())
}

/// An act's entry.
pub(super) fn act_entry(row: sale_act::Model) -> Result<ActEntry, StoreError> {
    let unreadable = |_| StoreError::unreadable("an act", &row);
    Ok(ActEntry {
        sale_id: row.sale_id.parse().map_err(unreadable)?,
        sku: row.sku.as_deref().map(str::parse).transpose().map_err(unreadable)?,
        key: row.key,
        act: row.kind,
        args: row.args,
        units: row.units,
        item_version: row.item_version,
        by: row.actor,
        reason: row.reason,
        state: row.state,
        result: row.result,
        at: Millis(row.at_ms),
        ended_at: row.ended_at_ms.map(Millis),
    })
}

/// A payment event's entry.
pub(super) fn payment_entry(row: payment_event::Model) -> Result<PaymentEntry, StoreError> {
    let unreadable = |_| StoreError::unreadable("a payment", &row);
    Ok(PaymentEntry {
        sale_id: row.sale_id.parse().map_err(unreadable)?,
        user_id: row.user_id.as_deref().map(str::parse).transpose().map_err(unreadable)?,
        provider: row.provider,
        event_id: row.event_id,
        event: row.kind,
        order_id: row.order_id.into(),
        state: row.state,
        new_order_id: row.new_order_id.map(Into::into),
        detail: row.detail,
        received_at: Millis(row.received_at_ms),
        due_at: Millis(row.due_at_ms),
        updated_at: Millis(row.updated_at_ms),
    })
}
