//! Restoring a sale from its entry.

use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QuerySelect as _,
};

use super::write_mode::WriteMode;
use crate::domain::{ItemEntry, SaleEntry, SaleState};
use crate::store::entities::{item, sale};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::Touched;
use crate::store::sales::terms_of;

impl Store {
    /// Brings a sale's row up to date: terms, state and each item's stock by their own versions. Returns `true` if
    /// something differed. May be repeated.
    ///
    /// Without `lower` no stock is lowered: orders that are live here may have ended since, and their ends must be
    /// restored first.
    pub async fn restore_sale(
        &self,
        entry: &SaleEntry,
        lower: bool,
        writing: WriteMode,
    ) -> Result<bool, StoreError> {
        self.within(async {
            let transaction = self.begin_restoring().await?;
            let id = entry.sale_id.as_str();
            let row = sale::Entity::find_by_id(id).lock_exclusive().one(&transaction).await?;
            let changed = match row {
                None => {
                    insert_sale(&transaction, entry).await?;
                    let inserted = sale::Entity::find_by_id(id).one(&transaction).await?;
                    // What was said of it may have been lost with its row.
                    if let Some(mut before) = inserted {
                        let is_paused = entry.state == SaleState::Paused;
                        let state = if is_paused { SaleState::Open } else { SaleState::Draft };
                        before.state = state.as_str().to_owned();
                        self.announce_state(&transaction, &before, entry.state).await?;
                    }
                    true
                }
                Some(row) => {
                    let (changed, newer_state) = update_sale(&transaction, entry, &row, lower).await?;
                    if newer_state {
                        self.announce_state(&transaction, &row, entry.state).await?;
                    }
                    changed
                }
            };
            self.finish_restore(
                transaction,
                entry.sale_id.as_str(),
                Touched::Sale,
                writing.if_differs(changed),
            )
            .await?;
            Ok(changed)
        })
        .await
    }
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
        insert_item(transaction, entry, item).await?;
    }
    Ok(())
}

async fn insert_item(
    transaction: &DatabaseTransaction,
    entry: &SaleEntry,
    item: &ItemEntry,
) -> Result<(), StoreError> {
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

/// Returns whether something differed, and whether the state is a newer one.
async fn update_sale(
    transaction: &DatabaseTransaction,
    entry: &SaleEntry,
    row: &sale::Model,
    lower: bool,
) -> Result<(bool, bool), StoreError> {
    let id = entry.sale_id.as_str();
    let newer_terms = entry.terms_version > row.rules_version;
    let archived = row.state == SaleState::Archived.as_str();
    // Archiving takes no number.
    let archives = entry.state == SaleState::Archived;
    let number = (entry.number.epoch, entry.number.seq).cmp(&(row.epoch, row.seq));
    let newer_state = !archived && (number.is_gt() || (archives && number.is_eq()));
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
    let items_differ = update_items(transaction, entry, newer_terms, lower).await?;
    Ok((newer_terms || newer_state || items_differ, newer_state))
}

/// Returns `true` if something differed.
async fn update_items(
    transaction: &DatabaseTransaction,
    entry: &SaleEntry,
    newer_terms: bool,
    lower: bool,
) -> Result<bool, StoreError> {
    let id = entry.sale_id.as_str();
    let rows = item::Entity::find().filter(item::Column::SaleId.eq(id)).all(transaction).await?;
    let mut changed = false;
    for item in &entry.items {
        let Some(row) = rows.iter().find(|row| row.sku == item.sku.as_str()) else {
            insert_item(transaction, entry, item).await?;
            changed = true;
            continue;
        };
        // Units are taken away in two steps under one version, so at equal versions the lower stock is the later one.
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
