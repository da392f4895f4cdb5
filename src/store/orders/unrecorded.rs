//! Ending an order that has no row yet.

use sea_orm::EntityTrait as _;
use uuid::Uuid;

use super::claim::Claim;
use super::history::event;
use super::new_rows::ended_row;
use super::read::{OrderRow, read_order};
use super::returns::return_row;
use crate::domain::{ActRequest, OrderStatus};
use crate::fault::fault;
use crate::store::entities::{gate_return, order, order_event};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::{Touched, log};
use crate::store::transaction::MayCommit;

impl Store {
    /// Cancels an order that has no row yet: its row is inserted as cancelled, so that a late message finds it and
    /// changes nothing. `None` if the order has a row by now: use [`Store::change`] then.
    ///
    /// This is safe even if the gate counts one unit too many. The worker would have refused an order for that unit;
    /// now the unit of the cancelled order is sold again, and the order that buys it is refused instead, because the
    /// database counts units sold.
    pub async fn cancel_unrecorded(
        &self,
        claim: &Claim,
        asked: &ActRequest,
        may_commit: MayCommit<'_>,
    ) -> Result<Option<OrderRow>, StoreError> {
        self.end_unrecorded(claim, OrderStatus::Cancelled, asked, may_commit).await
    }

    /// Like [`Store::cancel_unrecorded`], but ends the order in any given state. For an order that only the gate knows.
    pub async fn end_unrecorded(
        &self,
        claim: &Claim,
        status: OrderStatus,
        asked: &ActRequest,
        may_commit: MayCommit<'_>,
    ) -> Result<Option<OrderRow>, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let attempt = Uuid::new_v4();
            let order = &claim.order;
            order::Entity::insert(ended_row(claim, status, attempt))
                .on_conflict(self.skip_duplicates())
                .exec_without_returning(&transaction)
                .await?;
            let row = order::Entity::find_by_id(order.id.uuid()).one(&transaction).await?;
            let Some(row) = row.filter(|row| row.attempt_id == Some(attempt)) else {
                // A worker was faster, or another order has its number.
                transaction.rollback().await?;
                return Ok(None);
            };
            let row = read_order(row)?;
            let event = event(&row, OrderStatus::Accepted, asked);
            order_event::Entity::insert(event).exec_without_returning(&transaction).await?;
            gate_return::Entity::insert(return_row(&row.order, row.updated_at))
                .exec_without_returning(&transaction)
                .await?;
            log(&transaction, order.sale.as_str(), [Touched::Order(order.id)]).await?;
            self.announce(&transaction, [row.reached()]).await?;
            self.commit_if(may_commit, transaction, &[order.sale.as_str()]).await?;
            fault!("cancel.after", return Err(StoreError::Away("injected".into())));
            Ok(Some(row))
        })
        .await
    }
}
