//! From when on the order log may have entries that the database lacks.

use sea_orm::sea_query::OnConflict;
use sea_orm::{ActiveValue::Set, EntityTrait as _};

use crate::domain::Millis;
use crate::store::entities::log_position;
use crate::store::error::StoreError;
use crate::store::handle::Store;

/// The key of the only row.
const ONLY: i32 = 1;

impl Store {
    /// Records that the database has every entry of the order log that is older than `from`. A backup contains this
    /// row, so a database that was restored knows from when on it needs the log.
    pub async fn set_replay_from(&self, from: Millis) -> Result<(), StoreError> {
        let row = log_position::ActiveModel { id: Set(ONLY), replay_from_ms: Set(from.0) };
        let conflict = OnConflict::column(log_position::Column::Id)
            .update_column(log_position::Column::ReplayFromMs)
            .to_owned();
        self.within(async {
            let transaction = self.begin().await?;
            log_position::Entity::insert(row)
                .on_conflict(conflict)
                .exec_without_returning(&transaction)
                .await?;
            // In one that was put back a moment ago, it would say that the log is not needed.
            self.ensure_current_within(&transaction).await?;
            Ok(transaction.commit().await?)
        })
        .await
    }

    /// The time of [`Store::set_replay_from`]; `None` if it was never recorded.
    pub async fn replay_from(&self) -> Result<Option<Millis>, StoreError> {
        self.within(async {
            let row = log_position::Entity::find_by_id(ONLY).one(&self.db).await?;
            Ok(row.map(|row| Millis(row.replay_from_ms)))
        })
        .await
    }
}
