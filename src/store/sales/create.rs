//! Creating sales, and recording their state.

use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, EntityTrait as _, QueryFilter as _, QuerySelect as _, SqlErr,
};

use super::read::terms_of;
use crate::domain::{Millis, Number, Sale, SaleId, SaleState};
use crate::store::entities::{item, sale};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::{Touched, log};

/// The epoch of a sale whose gate was never rebuilt.
const FIRST_EPOCH: i64 = 1;

impl Store {
    /// Creates a draft. The sale must pass [`Sale::check`]. [`StoreError::Exists`] if its id is taken.
    pub async fn create_sale(&self, sale: &Sale) -> Result<(), StoreError> {
        let now = Millis::now().0;
        let row = sale::ActiveModel {
            id: Set(sale.id.to_string()),
            state: Set(SaleState::Draft.as_str().into()),
            rules_version: Set(1),
            told_epoch: Set(0),
            told_seq: Set(0),
            epoch: Set(FIRST_EPOCH),
            seq: Set(0),
            created_at_ms: Set(now),
            updated_at_ms: Set(now),
            ..terms_of(sale)
        };
        let items = sale.items.iter().map(|item| item::ActiveModel {
            sale_id: Set(sale.id.to_string()),
            sku: Set(item.sku.to_string()),
            stock: Set(item.stock),
            sold: Set(0),
            version: Set(1),
            limit_per_user: Set(item.limit_per_user.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX))),
        });
        self.within(async {
            let transaction = self.begin().await?;
            let inserted = sale::Entity::insert(row).exec_without_returning(&transaction).await;
            if let Err(error) = &inserted
                && matches!(error.sql_err(), Some(SqlErr::UniqueConstraintViolation(_)))
            {
                return Err(StoreError::Exists("a sale with this id"));
            }
            inserted?;
            item::Entity::insert_many(items).exec_without_returning(&transaction).await?;
            log(&transaction, sale.id.as_str(), [Touched::Sale]).await?;
            self.commit(transaction, &[sale.id.as_str()]).await?;
            Ok(())
        })
        .await
    }

    /// Records the state of a sale with the gate's number of that change. A number below the recorded one changes
    /// nothing, because a later change was recorded first. Nothing leaves `archived`: a state that the gate reported
    /// just before it was unloaded arrives too late. A state that is an event is written down for webhooks. Payments that
    /// wait for a sale which is open or closed now are tried at once.
    pub async fn set_sale_state(
        &self,
        id: &SaleId,
        state: SaleState,
        number: Number,
    ) -> Result<(), StoreError> {
        let older = sea_orm::Condition::any().add(sale::Column::Epoch.lt(number.epoch)).add(
            sea_orm::Condition::all()
                .add(sale::Column::Epoch.eq(number.epoch))
                .add(sale::Column::Seq.lte(number.seq)),
        );
        let update = sale::Entity::update_many()
            .set(sale::ActiveModel {
                state: Set(state.as_str().into()),
                epoch: Set(number.epoch),
                seq: Set(number.seq),
                updated_at_ms: Set(Millis::now().0),
                ..Default::default()
            })
            .filter(sale::Column::Id.eq(id.as_str()))
            .filter(sale::Column::State.ne(SaleState::Archived.as_str()))
            .filter(older);
        self.within(async {
            let transaction = self.begin().await?;
            let before = sale::Entity::find_by_id(id.as_str()).lock_exclusive().one(&transaction).await?;
            let updated = update.exec(&transaction).await?;
            if let Some(before) = before.filter(|_| updated.rows_affected > 0) {
                self.announce_state(&transaction, &before, state).await?;
            }
            log(&transaction, id.as_str(), [Touched::Sale]).await?;
            self.commit(transaction, &[id.as_str()]).await?;
            Ok(())
        })
        .await?;
        if matches!(state, SaleState::Open | SaleState::Closed)
            && let Err(error) = self.hurry_payments(id).await
        {
            tracing::debug!(sale = %id, %error, "payments that waited for the sale are tried when they are due");
        }
        Ok(())
    }
}
