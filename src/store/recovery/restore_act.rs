//! Restoring an operator's act from its entry.

use sea_orm::{ActiveValue::Set, ColumnTrait as _, EntityTrait as _, QueryFilter as _, QuerySelect as _};

use super::write_mode::WriteMode;
use crate::domain::ActEntry;
use crate::store::entities::sale_act;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::Touched;
use crate::store::states::ActState;

impl Store {
    /// Restores an act of a sale that exists. Returns `true` if the act or its end was unknown. May be repeated.
    pub async fn restore_act(&self, entry: &ActEntry, writing: WriteMode) -> Result<bool, StoreError> {
        self.within(async {
            let transaction = self.begin_restoring().await?;
            let id = (entry.sale_id.to_string(), entry.key.clone());
            let row = sale_act::Entity::find_by_id(id).lock_exclusive().one(&transaction).await?;
            let pending = ActState::Pending.as_str();
            let newer = match &row {
                None => true,
                Some(row) => row.state == pending && entry.state != pending,
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
            self.finish_restore(
                transaction,
                entry.sale_id.as_str(),
                Touched::Act(&entry.key),
                writing.if_differs(newer),
            )
            .await?;
            Ok(newer)
        })
        .await
    }
}
