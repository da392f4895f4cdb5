//! Recording payment events, including those that cannot be applied yet.

use std::time::Duration;

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{ColumnTrait as _, EntityTrait as _, QueryFilter as _};

use super::event::{Payment, lock_event, log_event};
use crate::domain::{Millis, OrderId, SaleId};
use crate::store::entities::payment_event;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::states::PaymentState;

impl Store {
    /// Records a new event as pending. On return it is durable. Returns the event as recorded, which differs if its id
    /// was recorded before.
    pub async fn receive_payment(&self, payment: &Payment) -> Result<Payment, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let known = lock_event(&transaction, payment).await?.keep(&transaction).await?;
            self.commit(transaction, &[payment.sale.as_str()]).await?;
            Ok(known)
        })
        .await
    }

    /// Ends a pending event for which no unit was taken again. Returns `false` if it has ended, or has taken a unit by
    /// now.
    pub async fn settle_payment(
        &self,
        payment: &Payment,
        state: PaymentState,
        detail: Option<&str>,
    ) -> Result<bool, StoreError> {
        let detail = detail.map(|detail| detail.chars().take(200).collect::<String>());
        self.within(async {
            let transaction = self.begin().await?;
            let updated = payment_event::Entity::update_many()
                .col_expr(payment_event::Column::State, Expr::val(state.as_str()))
                .col_expr(payment_event::Column::Detail, Expr::val(detail))
                .col_expr(payment_event::Column::UpdatedAtMs, Expr::val(Millis::now().0))
                .filter(payment_event::Column::Provider.eq(payment.provider.as_str()))
                .filter(payment_event::Column::EventId.eq(payment.event_id.as_str()))
                .filter(payment_event::Column::State.eq(PaymentState::Pending.as_str()))
                .filter(payment_event::Column::NewOrderId.is_null())
                .exec(&transaction)
                .await?;
            log_event(&transaction, payment).await?;
            self.commit(transaction, &[payment.sale.as_str()]).await?;
            Ok(updated.rows_affected == 1)
        })
        .await
    }

    /// Has maintenance try the pending events of a sale at once: what they wait for may have come.
    pub async fn hurry_payments(&self, sale: &SaleId) -> Result<(), StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            payment_event::Entity::update_many()
                .col_expr(payment_event::Column::DueAtMs, self.clock())
                .filter(payment_event::Column::SaleId.eq(sale.as_str()))
                .filter(payment_event::Column::State.eq(PaymentState::Pending.as_str()))
                .exec(&transaction)
                .await?;
            self.commit(transaction, &[]).await
        })
        .await
    }

    /// Postpones the next try of a pending event by so much, with the reason. Returns `false` if it is no longer pending.
    pub async fn postpone_payment(
        &self,
        payment: &Payment,
        wait: Duration,
        new_order: Option<OrderId>,
        detail: &str,
    ) -> Result<bool, StoreError> {
        let wait_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
        let detail: String = detail.chars().take(200).collect();
        self.within(async {
            let transaction = self.begin().await?;
            let mut update = payment_event::Entity::update_many()
                .col_expr(payment_event::Column::DueAtMs, self.clock().add(wait_ms))
                .col_expr(payment_event::Column::Detail, Expr::val(detail))
                .col_expr(payment_event::Column::UpdatedAtMs, Expr::val(Millis::now().0));
            if let Some(new_order) = new_order {
                update = update.col_expr(payment_event::Column::NewOrderId, Expr::val(new_order.uuid()));
            }
            let updated = update
                .filter(payment_event::Column::Provider.eq(payment.provider.as_str()))
                .filter(payment_event::Column::EventId.eq(payment.event_id.as_str()))
                .filter(payment_event::Column::State.eq(PaymentState::Pending.as_str()))
                .exec(&transaction)
                .await?;
            log_event(&transaction, payment).await?;
            self.commit(transaction, &[payment.sale.as_str()]).await?;
            Ok(updated.rows_affected == 1)
        })
        .await
    }
}
