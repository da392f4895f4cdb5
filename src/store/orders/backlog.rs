//! How much work is unfinished, for the gauges.

use sea_orm::sea_query::{Expr, ExprTrait as _};
use sea_orm::{
    ColumnTrait as _, EntityTrait as _, PaginatorTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};

use crate::domain::Millis;
use crate::store::entities::{gate_return, order, payment_event, sale_act};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::states::{ActState, PaymentState};

/// Unfinished work in all sales.
#[derive(Debug, Clone, Default)]
pub struct Backlog {
    /// Ended orders whose units the gate may not have back.
    pub returns: u64,
    /// When the oldest of them ended.
    pub oldest_return: Option<Millis>,
    /// Orders past their payment deadline.
    pub overdue: u64,
    /// Payments that wait to be applied.
    pub pending_payments: u64,
    /// Payments to be refunded.
    pub late_payments: u64,
    /// Unfinished acts on sales.
    pub pending_acts: u64,
}

impl Store {
    /// Counts the unfinished work, each count by an index.
    pub async fn backlog(&self) -> Result<Backlog, StoreError> {
        let payments = |state: PaymentState| {
            payment_event::Entity::find()
                .filter(payment_event::Column::State.eq(state.as_str()))
                .count(&self.db)
        };
        self.within(async {
            let oldest: Option<i64> = gate_return::Entity::find()
                .select_only()
                .column(gate_return::Column::AtMs)
                .order_by_asc(gate_return::Column::AtMs)
                .into_tuple()
                .one(&self.db)
                .await?;
            Ok(Backlog {
                returns: gate_return::Entity::find().count(&self.db).await?,
                oldest_return: oldest.map(Millis),
                overdue: order::Entity::find()
                    .filter(Expr::col(order::Column::PayByMs).lte(self.clock()))
                    .count(&self.db)
                    .await?,
                pending_payments: payments(PaymentState::Pending).await?,
                late_payments: payments(PaymentState::Late).await?,
                pending_acts: sale_act::Entity::find()
                    .filter(sale_act::Column::State.eq(ActState::Pending.as_str()))
                    .count(&self.db)
                    .await?,
            })
        })
        .await
    }
}
