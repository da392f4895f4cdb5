//! The installation that the database belongs to.

use sea_orm::sea_query::OnConflict;
use sea_orm::{ActiveValue::Set, ConnectionTrait, EntityTrait as _};
use sea_orm_migration::SchemaManager;

use super::entities::installation;
use super::error::StoreError;
use super::handle::Store;
use crate::link::{DATABASE, InstallationId};

/// The key of the only row.
const ONLY: i32 = 1;

impl Store {
    /// The id that the database carries; `None` before its first `doorbuster migrate`. Checks nothing.
    pub async fn installation(&self) -> Result<Option<InstallationId>, StoreError> {
        self.within(async {
            match SchemaManager::new(&self.db).has_table("installation").await? {
                true => read(&self.db).await,
                false => Ok(None),
            }
        })
        .await
    }

    /// Compares the id that the database carries with those of the other servers. [`StoreError::Away`] if it belongs to
    /// another installation: as long as it does, nothing is written to it.
    pub async fn check_installation(&self) -> Result<(), StoreError> {
        self.within(self.check_installation_in(&self.db)).await
    }

    /// The same on one connection.
    pub(in crate::store) async fn check_installation_in(
        &self,
        connection: &impl ConnectionTrait,
    ) -> Result<(), StoreError> {
        if !self.installation.is_checked() {
            return Ok(());
        }
        match read(connection).await? {
            Some(id) => {
                self.installation.meet(DATABASE, id).map_err(|other| StoreError::Away(other.to_string()))
            }
            None => Ok(()),
        }
    }

    /// Gives the database this id if it has none. Fails if the other servers carry another one than the database.
    pub(in crate::store) async fn found_installation(&self, id: InstallationId) -> Result<(), StoreError> {
        self.within(async {
            let row = installation::ActiveModel { only: Set(ONLY), id: Set(id.to_string()) };
            installation::Entity::insert(row)
                .on_conflict(self.skip_existing(installation::Column::Only))
                .exec_without_returning(&self.db)
                .await?;
            let id = read(&self.db).await?.unwrap_or(id);
            self.installation.meet(DATABASE, id).map_err(|other| StoreError::Away(other.to_string()))
        })
        .await
    }

    /// Gives the database this id, whatever it had: a person knows that it belongs there.
    pub async fn join_installation(&self, id: InstallationId) -> Result<(), StoreError> {
        let row = installation::ActiveModel { only: Set(ONLY), id: Set(id.to_string()) };
        let conflict =
            OnConflict::column(installation::Column::Only).update_column(installation::Column::Id).to_owned();
        self.within(async {
            installation::Entity::insert(row).on_conflict(conflict).exec_without_returning(&self.db).await?;
            Ok(())
        })
        .await
    }
}

async fn read(connection: &impl ConnectionTrait) -> Result<Option<InstallationId>, StoreError> {
    let row = installation::Entity::find_by_id(ONLY).one(connection).await?;
    let id = row.map(|row| row.id.parse()).transpose();
    id.map_err(|error| StoreError::unreadable("the id of the installation", error))
}
