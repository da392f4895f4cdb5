//! A refusal by the database is an outcome: a row in state `failed` with the order's id, so that the buyer can read it
//! and a late copy of the message cannot win.

use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QueryOrder as _,
};
use uuid::Uuid;

use super::claim::{Claim, Recorded, Refusal};
use super::new_rows::failed_row;
use super::read::read_order;
use crate::domain::{Failure, Order};
use crate::store::entities::{order, user_units};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::{Touched, log};
use crate::store::transaction::MayCommit;

/// The token of a caller without a lease, such as an operator: every lease has a higher one.
const UNFENCED: i64 = 0;

impl Store {
    /// Ends a claim that stood alone and was refused.
    pub(in crate::store) async fn refuse(
        &self,
        claim: &Claim,
        refusal: Refusal,
        may_commit: MayCommit<'_>,
    ) -> Result<Recorded, StoreError> {
        let (failure, winner) = match refusal {
            Refusal::Fence => return Ok(Recorded::Stale),
            Refusal::Stock(failure) => (failure, None),
            Refusal::Limit => (Failure::OverLimit, self.live_order_of(&claim.order).await?),
            Refusal::Conflict => match self.live_order_of(&claim.order).await? {
                Some(winner) if winner.key == claim.order.key => (Failure::OverLimit, Some(winner)),
                _ if self.number_is_taken(&claim.order).await? => (Failure::NumberReused, None),
                // The row that it conflicted with was rolled back by another worker.
                _ => return Err(StoreError::Away("lost a race with another worker".into())),
            },
        };
        self.within(self.commit_failure(claim, failure, winner, may_commit)).await
    }

    /// Ends an order that no worker could process. On return its row is durable: `failed` with [`Failure::GivenUp`], or
    /// unchanged if it existed before. May be repeated.
    pub async fn give_up(&self, order: &Order) -> Result<Recorded, StoreError> {
        let claim = Claim { order: order.clone(), fence: UNFENCED };
        self.within(self.commit_failure(&claim, Failure::GivenUp, None, &|| true)).await
    }

    async fn commit_failure(
        &self,
        claim: &Claim,
        failure: Failure,
        winner: Option<Order>,
        may_commit: MayCommit<'_>,
    ) -> Result<Recorded, StoreError> {
        let attempt = Uuid::new_v4();
        // An explicit transaction, because a connection whose BEGIN timed out may still be inside a transaction that
        // nobody commits.
        let transaction = self.begin().await?;
        if claim.fence != UNFENCED && self.fence_of(&transaction, &claim.order).await? > claim.fence {
            transaction.rollback().await?;
            return Ok(Recorded::Stale);
        }
        let mut row = failed_row(claim, failure, attempt);
        let mut written = None;
        for _ in 0..2 {
            order::Entity::insert(row.clone())
                .on_conflict(self.skip_duplicates())
                .exec_without_returning(&transaction)
                .await?;
            written = order::Entity::find_by_id(claim.order.id.uuid()).one(&transaction).await?;
            if written.is_some() {
                break;
            }
            // Another order has its number too; a failed row does not need one.
            row.epoch = Set(None);
            row.seq = Set(None);
        }
        if let Some(row) = written.as_ref().filter(|row| row.attempt_id == Some(attempt)) {
            log(&transaction, claim.order.sale.as_str(), [Touched::Order(claim.order.id)]).await?;
            self.announce(&transaction, [read_order(row.clone())?.reached()]).await?;
        }
        self.commit_if(may_commit, transaction, &[claim.order.sale.as_str()]).await?;
        let Some(row) = written else {
            return Err(StoreError::Away("a refusal could not be written".into()));
        };
        if row.attempt_id == Some(attempt) {
            return Ok(Recorded::Failed(failure, winner.map(Box::new)));
        }
        let row = read_order(row)?;
        Ok(Recorded::Already(row.status, row.failure))
    }

    /// The highest token that has written for the order's user.
    async fn fence_of(&self, transaction: &DatabaseTransaction, order: &Order) -> Result<i64, StoreError> {
        let key = (order.sale.as_str().to_owned(), order.user.as_str().to_owned());
        let held = user_units::Entity::find_by_id(key).one(transaction).await?;
        Ok(held.map_or(UNFENCED, |held| held.fence))
    }

    /// The user's live order that conflicts with this one, preferably the one with the same key. Also read when the
    /// settlement of a failure is repeated.
    pub async fn live_order_of(&self, order: &Order) -> Result<Option<Order>, StoreError> {
        self.within(async {
            let rows = order::Entity::find()
                .filter(order::Column::SaleId.eq(order.sale.as_str()))
                .filter(order::Column::UserId.eq(order.user.as_str()))
                .filter(order::Column::LiveKey.is_not_null())
                .filter(order::Column::Id.ne(order.id.uuid()))
                .order_by_asc(order::Column::Id)
                .all(&self.db)
                .await?;
            let mut live = Vec::with_capacity(rows.len());
            for row in rows {
                live.push(read_order(row)?.order);
            }
            let same_key = live.iter().position(|other| other.key == order.key);
            Ok((!live.is_empty()).then(|| live.swap_remove(same_key.unwrap_or(0))))
        })
        .await
    }

    async fn number_is_taken(&self, order: &Order) -> Result<bool, StoreError> {
        self.within(async {
            let other = order::Entity::find()
                .filter(order::Column::SaleId.eq(order.sale.as_str()))
                .filter(order::Column::Epoch.eq(order.number.epoch))
                .filter(order::Column::Seq.eq(order.number.seq))
                .filter(order::Column::Id.ne(order.id.uuid()))
                .one(&self.db)
                .await?;
            Ok(other.is_some())
        })
        .await
    }
}
