//! Bringing sales, and what happened to them and was paid for their orders, up to date from entries.

use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QuerySelect as _,
};

use super::entities::{item, payment_event, sale, sale_act};
use super::journal::{Touched, log};
use super::sales::terms_of;
use super::{Store, StoreError};
use crate::domain::{ActEntry, OrderId, PaymentEntry, SaleEntry, SaleState};

/// What is done about a sale, an act or a payment that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Nothing: it is only looked at.
    DryRun,
    Rows,
    /// And the order log is told, because the entries are not from it.
    RowsAndLog,
}

impl Store {
    /// Brings a sale's row up to date: terms, state and each item's stock by their own versions. `true`
    /// where something differs.
    ///
    /// Without `lower` no stock is lowered: orders that live here may have ended since, and their ends must
    /// be written before.
    pub async fn restore_sale(
        &self,
        entry: &SaleEntry,
        lower: bool,
        writing: WriteMode,
    ) -> Result<bool, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let id = entry.sale_id.as_str();
            let row = sale::Entity::find_by_id(id).lock_exclusive().one(&transaction).await?;
            let changed = match row {
                None => {
                    insert_sale(&transaction, entry).await?;
                    true
                }
                Some(row) => update_sale(&transaction, entry, &row, lower).await?,
            };
            end(transaction, entry.sale_id.as_str(), Touched::Sale, writing, changed).await?;
            Ok(changed)
        })
        .await
    }

    /// `true` where the act was not known, or its end was not. Its sale must be there.
    pub async fn restore_act(&self, entry: &ActEntry, writing: WriteMode) -> Result<bool, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let id = (entry.sale_id.to_string(), entry.key.clone());
            let row = sale_act::Entity::find_by_id(id).lock_exclusive().one(&transaction).await?;
            let newer = match &row {
                None => true,
                Some(row) => row.state == "pending" && entry.state != "pending",
            };
            if newer && writing != WriteMode::DryRun {
                let model = sale_act::ActiveModel {
                    sale_id: Set(entry.sale_id.to_string()),
                    key: Set(entry.key.clone()),
                    kind: Set(entry.act.clone()),
                    args: Set(entry.args.clone()),
                    sku: Set(entry.sku.as_ref().map(ToString::to_string)),
                    units: Set(entry.units),
                    item_version: Set(entry.item_version),
                    actor: Set(entry.by.clone()),
                    reason: Set(entry.reason.clone()),
                    state: Set(entry.state.clone()),
                    result: Set(entry.result.clone()),
                    at_ms: Set(entry.at.0),
                    ended_at_ms: Set(entry.ended_at.map(|at| at.0)),
                };
                sale_act::Entity::delete_many()
                    .filter(sale_act::Column::SaleId.eq(entry.sale_id.as_str()))
                    .filter(sale_act::Column::Key.eq(entry.key.as_str()))
                    .exec(&transaction)
                    .await?;
                sale_act::Entity::insert(model).exec_without_returning(&transaction).await?;
            }
            end(transaction, entry.sale_id.as_str(), Touched::Act(&entry.key), writing, newer).await?;
            Ok(newer)
        })
        .await
    }

    /// `true` where the event was not known, or the row was older. What has ended never waits again,
    /// whatever the clocks of those who wrote it say.
    pub async fn restore_payment(
        &self,
        entry: &PaymentEntry,
        writing: WriteMode,
    ) -> Result<bool, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let id = (entry.provider.clone(), entry.event_id.clone());
            let row = payment_event::Entity::find_by_id(id).lock_exclusive().one(&transaction).await?;
            const PENDING: &str = "pending";
            let newer = row.is_none_or(|row| match (row.state == PENDING, entry.state == PENDING) {
                (true, false) => true,
                (false, true) => false,
                _ => row.updated_at_ms < entry.updated_at.0,
            });
            if newer && writing != WriteMode::DryRun {
                let model = payment_event::ActiveModel {
                    provider: Set(entry.provider.clone()),
                    event_id: Set(entry.event_id.clone()),
                    kind: Set(entry.event.clone()),
                    sale_id: Set(entry.sale_id.to_string()),
                    order_id: Set(entry.order_id.uuid()),
                    user_id: Set(entry.user_id.as_ref().map(ToString::to_string)),
                    state: Set(entry.state.clone()),
                    new_order_id: Set(entry.new_order_id.map(OrderId::uuid)),
                    detail: Set(entry.detail.clone()),
                    received_at_ms: Set(entry.received_at.0),
                    due_at_ms: Set(entry.due_at.0),
                    updated_at_ms: Set(entry.updated_at.0),
                };
                payment_event::Entity::delete_many()
                    .filter(payment_event::Column::Provider.eq(entry.provider.as_str()))
                    .filter(payment_event::Column::EventId.eq(entry.event_id.as_str()))
                    .exec(&transaction)
                    .await?;
                payment_event::Entity::insert(model).exec_without_returning(&transaction).await?;
            }
            let touched = Touched::Payment { provider: &entry.provider, event_id: &entry.event_id };
            end(transaction, entry.sale_id.as_str(), touched, writing, newer).await?;
            Ok(newer)
        })
        .await
    }
}

async fn end(
    transaction: DatabaseTransaction,
    sale: &str,
    touched: Touched<'_>,
    writing: WriteMode,
    differs: bool,
) -> Result<(), StoreError> {
    if writing == WriteMode::DryRun || !differs {
        return Ok(transaction.rollback().await?);
    }
    if writing == WriteMode::RowsAndLog {
        log(&transaction, sale, [touched]).await?;
    }
    Ok(transaction.commit().await?)
}

async fn insert_sale(transaction: &DatabaseTransaction, entry: &SaleEntry) -> Result<(), StoreError> {
    let row = sale::ActiveModel {
        id: Set(entry.sale_id.to_string()),
        state: Set(entry.state.as_str().into()),
        rules_version: Set(entry.terms_version),
        told_epoch: Set(0),
        told_seq: Set(0),
        epoch: Set(entry.number.epoch),
        seq: Set(entry.number.seq),
        created_at_ms: Set(entry.created_at.0),
        ..terms_of(&entry.to_sale())
    };
    sale::Entity::insert(row).exec_without_returning(transaction).await?;
    for item in &entry.items {
        insert_item(transaction, entry, &item.sku).await?;
    }
    Ok(())
}

async fn insert_item(
    transaction: &DatabaseTransaction,
    entry: &SaleEntry,
    sku: &crate::domain::Sku,
) -> Result<(), StoreError> {
    let Some(item) = entry.items.iter().find(|item| item.sku == *sku) else { return Ok(()) };
    let row = item::ActiveModel {
        sale_id: Set(entry.sale_id.to_string()),
        sku: Set(item.sku.to_string()),
        stock: Set(item.stock),
        sold: Set(0),
        version: Set(item.version),
        limit_per_user: Set(item.limit_per_user.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX))),
    };
    item::Entity::insert(row).exec_without_returning(transaction).await?;
    Ok(())
}

async fn update_sale(
    transaction: &DatabaseTransaction,
    entry: &SaleEntry,
    row: &sale::Model,
    lower: bool,
) -> Result<bool, StoreError> {
    let id = entry.sale_id.as_str();
    let newer_terms = entry.terms_version > row.rules_version;
    let archived = row.state == SaleState::Archived.as_str();
    // Archiving takes no number of its own.
    let archives = entry.state == SaleState::Archived;
    let number = (entry.number.epoch, entry.number.seq).cmp(&(row.epoch, row.seq));
    let newer_state = !archived && (number.is_gt() || (archives && number.is_eq()));
    let mut changed = newer_terms || newer_state;
    if newer_terms {
        let terms =
            sale::ActiveModel { rules_version: Set(entry.terms_version), ..terms_of(&entry.to_sale()) };
        sale::Entity::update_many().set(terms).filter(sale::Column::Id.eq(id)).exec(transaction).await?;
    }
    if newer_state {
        sale::Entity::update_many()
            .col_expr(sale::Column::State, Expr::val(entry.state.as_str()))
            .col_expr(sale::Column::Epoch, Expr::val(entry.number.epoch))
            .col_expr(sale::Column::Seq, Expr::val(entry.number.seq))
            .filter(sale::Column::Id.eq(id))
            .exec(transaction)
            .await?;
    }
    let rows = item::Entity::find().filter(item::Column::SaleId.eq(id)).all(transaction).await?;
    for item in &entry.items {
        let Some(row) = rows.iter().find(|row| row.sku == item.sku.as_str()) else {
            insert_item(transaction, entry, &item.sku).await?;
            changed = true;
            continue;
        };
        // Units are taken away in two steps under one version: the lower stock is the later.
        let newer = item.version > row.version || (item.version == row.version && item.stock < row.stock);
        let newer = newer && (lower || item.stock >= row.stock);
        let mut update = item::Entity::update_many();
        if newer {
            update = update
                .col_expr(item::Column::Stock, Expr::val(item.stock))
                .col_expr(item::Column::Version, Expr::val(item.version));
        }
        if newer_terms {
            let limit = item.limit_per_user.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX));
            update = update.col_expr(item::Column::LimitPerUser, Expr::val(limit));
        }
        if newer || newer_terms {
            changed = true;
            update
                .filter(item::Column::SaleId.eq(id))
                .filter(item::Column::Sku.eq(item.sku.as_str()))
                .exec(transaction)
                .await?;
        }
    }
    Ok(changed)
}
