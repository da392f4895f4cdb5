//! Restoring a payment event from its entry.

use sea_orm::{ActiveValue::Set, ColumnTrait as _, EntityTrait as _, QueryFilter as _, QuerySelect as _};

use super::write_mode::WriteMode;
use crate::domain::{OrderId, PaymentEntry};
use crate::store::entities::payment_event;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::Touched;
use crate::store::states::PaymentState;

impl Store {
    /// Restores a payment event. Returns `true` if the event was unknown, or its row older. An event that has ended
    /// never becomes pending again, whatever the clocks of its writers say. May be repeated.
    pub async fn restore_payment(
        &self,
        entry: &PaymentEntry,
        writing: WriteMode,
    ) -> Result<bool, StoreError> {
        self.within(async {
            let transaction = self.begin_restoring().await?;
            let id = (entry.provider.clone(), entry.event_id.clone());
            let row = payment_event::Entity::find_by_id(id).lock_exclusive().one(&transaction).await?;
            let pending = PaymentState::Pending.as_str();
            let newer = row.is_none_or(|row| match (row.state == pending, entry.state == pending) {
                (true, false) => true,
                (false, true) => false,
                _ => row.updated_at_ms < entry.updated_at.0,
            });
            if newer && writing != WriteMode::DryRun {
                let model = payment_event::ActiveModel {
                    provider: Set(entry.provider.clone()),
                    event_id: Set(entry.event_id.clone()),
                    kind: Set(entry.event.clone()),
                    sale_id: Set(entry.sale_id.to_string()),
                    order_id: Set(entry.order_id.uuid()),
                    user_id: Set(entry.user_id.as_ref().map(ToString::to_string)),
                    state: Set(entry.state.clone()),
                    new_order_id: Set(entry.new_order_id.map(OrderId::uuid)),
                    detail: Set(entry.detail.clone()),
                    received_at_ms: Set(entry.received_at.0),
                    due_at_ms: Set(entry.due_at.0),
                    updated_at_ms: Set(entry.updated_at.0),
                };
                payment_event::Entity::delete_many()
                    .filter(payment_event::Column::Provider.eq(entry.provider.as_str()))
                    .filter(payment_event::Column::EventId.eq(entry.event_id.as_str()))
                    .exec(&transaction)
                    .await?;
                payment_event::Entity::insert(model).exec_without_returning(&transaction).await?;
            }
            let touched = Touched::Payment { provider: &entry.provider, event_id: &entry.event_id };
            self.finish_restore(transaction, entry.sale_id.as_str(), touched, writing.if_differs(newer))
                .await?;
            Ok(newer)
        })
        .await
    }
}
