//! What has changed and is not in the order log yet. Written in the transaction of the change, as a
//! reference alone: what is logged is how the row stands when it is logged, which is as new or newer.

use std::collections::{BTreeMap, BTreeSet};

use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, ConnectionTrait, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};
use uuid::Uuid;

use super::entities::{item, log_outbox, order, order_event, payment_event, sale, sale_act};
use super::many::is_one_of;
use super::orders::{page, read_order};
use super::sales::read_sale;
use super::{Store, StoreError};
use crate::domain::{
    ActEntry, Entry, ItemEntry, Millis, OrderEntry, OrderId, PaymentEntry, SaleEntry, SaleId, Step,
};

const ORDER: &str = "order";
const SALE: &str = "sale";
const ACT: &str = "act";
const PAYMENT: &str = "payment";

/// Separates the provider from the event: it is in no provider's name.
const OF: char = '/';

/// A row that has changed.
pub(super) enum Touched<'a> {
    Order(OrderId),
    Sale,
    Act(&'a str),
    Payment { provider: &'a str, event_id: &'a str },
}

/// Has the row logged. In the transaction of its change.
pub(super) async fn log(
    transaction: &impl ConnectionTrait,
    sale: &str,
    touched: impl IntoIterator<Item = Touched<'_>>,
) -> Result<(), StoreError> {
    let now = Millis::now().0;
    let rows: Vec<_> = touched
        .into_iter()
        .map(|touched| {
            let (kind, reference) = match touched {
                Touched::Order(id) => (ORDER, id.to_string()),
                Touched::Sale => (SALE, sale.to_owned()),
                Touched::Act(key) => (ACT, key.to_owned()),
                Touched::Payment { provider, event_id } => (PAYMENT, format!("{provider}{OF}{event_id}")),
            };
            log_outbox::ActiveModel {
                id: Set(Uuid::now_v7()),
                kind: Set(kind.to_owned()),
                sale_id: Set(sale.to_owned()),
                reference: Set(reference),
                at_ms: Set(now),
            }
        })
        .collect();
    if !rows.is_empty() {
        log_outbox::Entity::insert_many(rows).exec_without_returning(transaction).await?;
    }
    Ok(())
}

/// Changes that the log lacks, and how their rows stand now.
#[derive(Debug, Default)]
pub struct Unlogged {
    pub entries: Vec<Entry>,
    /// What [`Store::forget_logged`] takes once the log has the entries.
    pub ids: Vec<Uuid>,
    /// When the oldest of them happened.
    pub oldest: Option<Millis>,
}

impl Store {
    /// The oldest changes that the log lacks. What is gone since then, with its sale, has no entry.
    pub async fn unlogged(&self, limit: u64) -> Result<Unlogged, StoreError> {
        self.within(async {
            let rows = log_outbox::Entity::find()
                .order_by_asc(log_outbox::Column::Id)
                .limit(limit)
                .all(&self.db)
                .await?;
            let mut unlogged =
                Unlogged { oldest: rows.first().map(|row| Millis(row.at_ms)), ..Default::default() };
            // One that this build cannot read waits for a build that can, and keeps nobody else waiting.
            let unreadable = |row: &log_outbox::Model, error: &StoreError| {
                tracing::warn!(kind = row.kind, reference = row.reference, %error, "cannot be logged by this build");
            };
            let mut orders: BTreeMap<Uuid, Vec<&log_outbox::Model>> = BTreeMap::new();
            let mut seen = BTreeSet::new();
            for row in &rows {
                if row.kind == ORDER
                    && let Ok(id) = row.reference.parse()
                {
                    orders.entry(id).or_default().push(row);
                    continue;
                }
                if seen.insert((&row.kind, &row.sale_id, &row.reference)) {
                    match self.entry_of(row).await {
                        Ok(entry) => unlogged.entries.extend(entry),
                        Err(error @ StoreError::Broken(_)) => {
                            unreadable(row, &error);
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                unlogged.ids.push(row.id);
            }
            let mut rows_of_orders = match orders.is_empty() {
                true => Vec::new(),
                false => {
                    let ids = orders.keys().copied();
                    order::Entity::find().filter(is_one_of(&self.db, order::Column::Id, ids)).all(&self.db).await?
                }
            };
            rows_of_orders.retain(|row| match read_order(row.clone()) {
                Ok(_) => true,
                Err(error) => {
                    let waits = orders.remove(&row.id).unwrap_or_default();
                    waits.into_iter().for_each(|row| unreadable(row, &error));
                    false
                }
            });
            unlogged.entries.extend(self.order_entries(rows_of_orders).await?);
            unlogged.ids.extend(orders.into_values().flatten().map(|row| row.id));
            Ok(unlogged)
        })
        .await
    }

    /// How the row stands that has changed; `None` where it is gone.
    async fn entry_of(&self, row: &log_outbox::Model) -> Result<Option<Entry>, StoreError> {
        let unreadable = || StoreError::unreadable("what is to be logged", row);
        match row.kind.as_str() {
            SALE => Ok(self.sale_entry(&row.sale_id).await?.map(Box::new).map(Entry::Sale)),
            ACT => {
                let key = (row.sale_id.clone(), row.reference.clone());
                let act = sale_act::Entity::find_by_id(key).one(&self.db).await?;
                Ok(act.map(act_entry).transpose()?.map(Box::new).map(Entry::Act))
            }
            PAYMENT => {
                let (provider, event) = row.reference.split_once(OF).ok_or_else(unreadable)?;
                let key = (provider.to_owned(), event.to_owned());
                let payment = payment_event::Entity::find_by_id(key).one(&self.db).await?;
                Ok(payment.map(payment_entry).transpose()?.map(Box::new).map(Entry::Payment))
            }
            _ => Err(unreadable()),
        }
    }

    /// The log has them. May be repeated.
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

    /// A sale with its acts and its payments, as entries; empty where there is no such sale.
    pub async fn sale_entries(&self, sale: &SaleId) -> Result<Vec<Entry>, StoreError> {
        self.within(async {
            let Some(entry) = self.sale_entry(sale.as_str()).await? else { return Ok(Vec::new()) };
            let mut entries = vec![Entry::Sale(Box::new(entry))];
            let acts = sale_act::Entity::find()
                .filter(sale_act::Column::SaleId.eq(sale.as_str()))
                .order_by_asc(sale_act::Column::AtMs)
                .all(&self.db)
                .await?;
            for act in acts {
                entries.push(Entry::Act(Box::new(act_entry(act)?)));
            }
            let payments = payment_event::Entity::find()
                .filter(payment_event::Column::SaleId.eq(sale.as_str()))
                .order_by_asc(payment_event::Column::ReceivedAtMs)
                .all(&self.db)
                .await?;
            for payment in payments {
                entries.push(Entry::Payment(Box::new(payment_entry(payment)?)));
            }
            Ok(entries)
        })
        .await
    }

    /// One page of a sale's orders by id, those after `after`, with their histories.
    pub async fn order_entries_after(
        &self,
        sale: &SaleId,
        after: Option<OrderId>,
        limit: u64,
    ) -> Result<Vec<Entry>, StoreError> {
        let query = page(sale, after, limit);
        self.within(async {
            let rows = query.all(&self.db).await?;
            self.order_entries(rows).await
        })
        .await
    }

    async fn sale_entry(&self, id: &str) -> Result<Option<SaleEntry>, StoreError> {
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

    async fn order_entries(&self, rows: Vec<order::Model>) -> Result<Vec<Entry>, StoreError> {
        let ids: Vec<Uuid> = rows.iter().filter(|row| row.version > 0).map(|row| row.id).collect();
        let mut histories: BTreeMap<Uuid, Vec<Step>> = BTreeMap::new();
        if !ids.is_empty() {
            let events = order_event::Entity::find()
                .filter(is_one_of(&self.db, order_event::Column::OrderId, ids))
                .order_by_asc(order_event::Column::Version)
                .all(&self.db)
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
        rows.into_iter()
            .map(|row| {
                let id = row.id;
                let row = read_order(row)?;
                Ok(Entry::Order(Box::new(OrderEntry {
                    order: row.order,
                    status: row.status,
                    failure: row.failure,
                    version: row.version,
                    recorded_at: row.recorded_at,
                    updated_at: row.updated_at,
                    pay_by: row.pay_by,
                    history: histories.remove(&id).unwrap_or_default(),
                })))
            })
            .collect()
    }
}

fn act_entry(row: sale_act::Model) -> Result<ActEntry, StoreError> {
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

fn payment_entry(row: payment_event::Model) -> Result<PaymentEntry, StoreError> {
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
