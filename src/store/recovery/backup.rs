//! When the last backup of the database was made.

use sea_orm::sea_query::OnConflict;
use sea_orm::{ActiveValue::Set, EntityTrait as _};

use crate::domain::Millis;
use crate::store::entities::backup;
use crate::store::error::StoreError;
use crate::store::handle::Store;

/// The key of the only row.
const ONLY: i32 = 1;

impl Store {
    /// Records that a backup has everything committed before `at`. On return that is durable. Replaces the time of an
    /// earlier backup, and may be repeated.
    pub async fn mark_backup(&self, at: Millis) -> Result<(), StoreError> {
        let row = backup::ActiveModel { only: Set(ONLY), made_at_ms: Set(at.0) };
        let conflict =
            OnConflict::column(backup::Column::Only).update_column(backup::Column::MadeAtMs).to_owned();
        self.within(async {
            let transaction = self.begin().await?;
            backup::Entity::insert(row).on_conflict(conflict).exec_without_returning(&transaction).await?;
            Ok(transaction.commit().await?)
        })
        .await
    }

    /// The time of the last [`Store::mark_backup`]; `None` if there was none.
    pub async fn last_backup(&self) -> Result<Option<Millis>, StoreError> {
        self.within(async {
            let row = backup::Entity::find_by_id(ONLY).one(&self.db).await?;
            Ok(row.map(|row| Millis(row.made_at_ms)))
        })
        .await
    }
}
