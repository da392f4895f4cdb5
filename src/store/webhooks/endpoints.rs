//! The endpoints of webhooks.

use std::collections::BTreeMap;
use std::time::Duration;

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _,
};

use crate::domain::{EventTypes, Millis};
use crate::store::clock;
use crate::store::entities::webhook_delivery;
use crate::store::entities::webhook_endpoint::{ActiveModel, Column, Entity, Model};
use crate::store::error::StoreError;
use crate::store::handle::Store;

const ON: &str = "on";
const OFF: &str = "off";

/// Whether an endpoint is given anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointState {
    /// It is.
    On,
    /// It is not, for this reason.
    Off(String),
}

/// Where a shop takes webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its name, chosen by the operator.
    pub id: String,
    /// Where it is.
    pub url: String,
    /// What deliveries are signed with, newest first: several while one is being rotated. Never print them.
    pub secrets: Vec<String>,
    /// What it is given.
    pub types: EventTypes,
    /// Whether it is given anything.
    pub state: EndpointState,
    /// Since when nothing could be delivered; `None` after a success.
    pub failing_since: Option<Millis>,
    /// When it was added.
    pub created_at: Millis,
}

/// What an endpoint has not taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Undelivered {
    /// Deliveries that wait.
    pub waiting: u64,
    /// Deliveries that were given up.
    pub given_up: u64,
    /// Why one of them was not taken when it was tried last; `None` if none was tried.
    pub error: Option<String>,
}

impl Store {
    /// Adds an endpoint. `false` if there is one with this id; then nothing was written.
    pub async fn add_endpoint(
        &self,
        id: &str,
        url: &str,
        secret: &str,
        types: &EventTypes,
    ) -> Result<bool, StoreError> {
        let row = ActiveModel {
            id: Set(id.to_owned()),
            url: Set(url.to_owned()),
            secrets: Set(secret.to_owned()),
            state: Set(ON.to_owned()),
            off_reason: Set(None),
            failing_since_ms: Set(None),
            created_at_ms: Set(Millis::now().0),
            types: Set(stored(types)),
        };
        self.within(async {
            let transaction = self.begin().await?;
            let is_new = Entity::find_by_id(id).lock_exclusive().one(&transaction).await?.is_none();
            if is_new {
                Entity::insert(row).exec_without_returning(&transaction).await?;
            }
            transaction.commit().await?;
            Ok(is_new)
        })
        .await
    }

    /// Whether there are endpoints that are on.
    pub async fn has_endpoints(&self) -> Result<bool, StoreError> {
        self.within(async {
            let on = Entity::find().filter(Column::State.eq(ON)).limit(1).one(&self.db).await?;
            Ok(on.is_some())
        })
        .await
    }

    /// All endpoints, by id.
    pub async fn endpoints(&self) -> Result<Vec<Endpoint>, StoreError> {
        self.within(async {
            let rows = Entity::find().order_by_asc(Column::Id).all(&self.db).await?;
            Ok(rows.into_iter().map(Endpoint::of).collect())
        })
        .await
    }

    /// What each endpoint has not taken. Of those that have taken everything nothing is said.
    pub async fn waiting_deliveries(&self) -> Result<BTreeMap<String, Undelivered>, StoreError> {
        self.within(async {
            let counted: Vec<(String, i64, i64, Option<String>)> = webhook_delivery::Entity::find()
                .select_only()
                .column(webhook_delivery::Column::EndpointId)
                .column_as(Expr::col(webhook_delivery::Column::OrderId).count(), "all")
                .column_as(Expr::col(webhook_delivery::Column::DueAtMs).count(), "waiting")
                .column_as(Expr::col(webhook_delivery::Column::LastError).max(), "error")
                .group_by(webhook_delivery::Column::EndpointId)
                .into_tuple()
                .all(&self.db)
                .await?;
            let count = |(endpoint, all, waiting, error)| {
                let [waiting, given_up] = [waiting, all - waiting].map(|n| u64::try_from(n).unwrap_or(0));
                (endpoint, Undelivered { waiting, given_up, error })
            };
            Ok(counted.into_iter().map(count).collect())
        })
        .await
    }

    /// Removes an endpoint with all that waits for it. Returns whether there was one. It is switched off first, and is still
    /// there after an error, with what waits or a part of it. May be repeated. Fails if the database is known to be behind.
    pub async fn remove_endpoint(&self, id: &str) -> Result<bool, StoreError> {
        self.ensure_current().await?;
        if !self.switch_endpoint(id, &EndpointState::Off("it is being removed".into())).await? {
            return Ok(false);
        }
        self.delete_deliveries(id).await?;
        self.within(async {
            let transaction = self.begin().await?;
            let removed = Entity::delete_by_id(id).exec(&transaction).await?;
            // Somebody may have switched it on meanwhile.
            webhook_delivery::Entity::delete_many()
                .filter(webhook_delivery::Column::EndpointId.eq(id))
                .exec(&transaction)
                .await?;
            transaction.commit().await?;
            Ok(removed.rows_affected > 0)
        })
        .await
    }

    /// Switches an endpoint on or off. What happens while it is off is not delivered later; what waited before is, once it
    /// is on. Returns whether there is such an endpoint.
    pub async fn switch_endpoint(&self, id: &str, state: &EndpointState) -> Result<bool, StoreError> {
        let (state, reason) = match state {
            EndpointState::On => (ON, None),
            EndpointState::Off(reason) => (OFF, Some(reason.chars().take(200).collect::<String>())),
        };
        self.within(async {
            let switched = Entity::update_many()
                .col_expr(Column::State, Expr::val(state))
                .col_expr(Column::OffReason, Expr::val(reason))
                .col_expr(Column::FailingSinceMs, Expr::val(Option::<i64>::None))
                .filter(Column::Id.eq(id))
                .exec(&self.db)
                .await?;
            Ok(switched.rows_affected > 0)
        })
        .await
    }

    /// Replaces the secrets of an endpoint, newest first. Returns whether there is such an endpoint with the secrets of
    /// `before`: another process may have changed them meanwhile.
    pub async fn set_endpoint_secrets(
        &self,
        id: &str,
        before: &[String],
        secrets: &[String],
    ) -> Result<bool, StoreError> {
        self.within(async {
            let set = Entity::update_many()
                .col_expr(Column::Secrets, Expr::val(secrets.join(" ")))
                .filter(Column::Id.eq(id))
                .filter(Column::Secrets.eq(before.join(" ")))
                .exec(&self.db)
                .await?;
            Ok(set.rows_affected > 0)
        })
        .await
    }

    /// Chooses what an endpoint is given from now on. What waits already stays. Returns whether there is such an endpoint.
    pub async fn set_endpoint_types(&self, id: &str, types: &EventTypes) -> Result<bool, StoreError> {
        self.within(async {
            let set = Entity::update_many()
                .col_expr(Column::Types, Expr::val(stored(types)))
                .filter(Column::Id.eq(id))
                .exec(&self.db)
                .await?;
            Ok(set.rows_affected > 0)
        })
        .await
    }

    /// Records whether an endpoint takes nothing at present. Returns for how long that has lasted.
    pub async fn note_endpoint(&self, id: &str, fails: bool) -> Result<Duration, StoreError> {
        self.within(async {
            let now = clock::now(&self.db).await?;
            let since = match fails {
                true => Expr::val(now.0),
                false => Expr::val(Option::<i64>::None),
            };
            let mut update = Entity::update_many().col_expr(Column::FailingSinceMs, since);
            update = update.filter(Column::Id.eq(id));
            update = match fails {
                true => update.filter(Column::FailingSinceMs.is_null()),
                false => update.filter(Column::FailingSinceMs.is_not_null()),
            };
            update.exec(&self.db).await?;
            let row = Entity::find_by_id(id).one(&self.db).await?;
            let since = row.and_then(|row| row.failing_since_ms).unwrap_or(now.0);
            Ok(Duration::from_millis(u64::try_from(now.0 - since).unwrap_or(0)))
        })
        .await
    }
}

/// The endpoints that are on. They stay until the transaction ends: a removal waits, and then also removes what
/// the endpoint was given.
pub(super) async fn that_are_on(transaction: &DatabaseTransaction) -> Result<Vec<Endpoint>, StoreError> {
    let on = Entity::find().filter(Column::State.eq(ON)).order_by_asc(Column::Id).lock_exclusive();
    Ok(on.all(transaction).await?.into_iter().map(Endpoint::of).collect())
}

/// Has everybody else wait who changes what the endpoint is to be given: they lock its deliveries in different orders.
pub(super) async fn lock_endpoint(transaction: &DatabaseTransaction, id: &str) -> Result<(), StoreError> {
    Entity::find_by_id(id).lock_exclusive().one(transaction).await?;
    Ok(())
}

/// As the database has it: nothing stands for all types, also for those that later builds add.
fn stored(types: &EventTypes) -> Option<String> {
    (!types.are_all()).then(|| types.names().join(" "))
}

impl Endpoint {
    fn of(row: Model) -> Self {
        let types = match &row.types {
            None => EventTypes::all(),
            Some(names) => EventTypes::known(names),
        };
        let state = if row.state == ON {
            EndpointState::On
        } else {
            EndpointState::Off(row.off_reason.unwrap_or_default())
        };
        Self {
            id: row.id,
            url: row.url,
            secrets: row.secrets.split(' ').map(str::to_owned).collect(),
            types,
            state,
            failing_since: row.failing_since_ms.map(Millis),
            created_at: Millis(row.created_at_ms),
        }
    }
}
