//! Settings that an operator has changed for all running processes. Which there are, and what they may be, is not known
//! here.

use sea_orm::sea_query::OnConflict;
use sea_orm::{ActiveValue::Set, EntityTrait as _, QueryOrder as _};

use super::clock;
use super::entities::live_setting::{ActiveModel, Column, Entity, Model};
use super::error::StoreError;
use super::handle::Store;
use crate::domain::{ActRequest, Millis};

/// A setting that was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSetting {
    /// The key of the configuration whose value it replaces.
    pub name: String,
    /// Its value, as the command line and the environment write it.
    pub value: String,
    /// Who set it.
    pub by: String,
    /// Why, in their words.
    pub reason: Option<String>,
    /// When.
    pub at: Millis,
}

impl Store {
    /// All settings that were changed, by name.
    pub async fn live_settings(&self) -> Result<Vec<LiveSetting>, StoreError> {
        self.within(async {
            let rows = Entity::find().order_by_asc(Column::Name).all(&self.db).await?;
            Ok(rows.into_iter().map(LiveSetting::from).collect())
        })
        .await
    }

    /// Sets a setting, which may be set already. On return that is durable. May be repeated.
    pub async fn set_live_setting(
        &self,
        name: &str,
        value: &str,
        request: &ActRequest,
    ) -> Result<(), StoreError> {
        let changed = [Column::Value, Column::Actor, Column::Reason, Column::SetAtMs];
        let conflict = OnConflict::column(Column::Name).update_columns(changed).to_owned();
        self.within(async {
            let row = ActiveModel {
                name: Set(name.to_owned()),
                value: Set(value.to_owned()),
                actor: Set(request.by.clone()),
                reason: Set(request.reason.clone()),
                set_at_ms: Set(clock::now(&self.db).await?.0),
            };
            Entity::insert(row).on_conflict(conflict).exec_without_returning(&self.db).await?;
            Ok(())
        })
        .await
    }

    /// Has the configuration's value count again. Returns whether another one was set. On return that is durable.
    pub async fn unset_live_setting(&self, name: &str) -> Result<bool, StoreError> {
        self.within(async {
            let deleted = Entity::delete_by_id(name).exec(&self.db).await?;
            Ok(deleted.rows_affected > 0)
        })
        .await
    }
}

impl From<Model> for LiveSetting {
    fn from(row: Model) -> Self {
        let Model { name, value, actor, reason, set_at_ms } = row;
        Self { name, value, by: actor, reason, at: Millis(set_at_ms) }
    }
}
