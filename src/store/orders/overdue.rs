//! Orders past their payment deadline.

use sea_orm::sea_query::{Expr, ExprTrait as _, Query, SelectStatement};
use sea_orm::{
    ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};
use uuid::Uuid;

use crate::domain::{OrderId, SaleId, UserId};
use crate::store::entities::{order, payment_event};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::states::{PaymentKind, PaymentState};

/// An order past its payment deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverdueOrder {
    /// The order.
    pub id: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// Its buyer.
    pub user: UserId,
}

impl Store {
    /// Orders of all sales but `except` that are past their payment deadline by the database's clock, longest overdue
    /// first. An order whose verified payment waits to be applied is not among them.
    pub async fn overdue_orders(
        &self,
        except: &[SaleId],
        limit: u64,
    ) -> Result<Vec<OverdueOrder>, StoreError> {
        self.within(async {
            let rows: Vec<(Uuid, String, String)> = order::Entity::find()
                .select_only()
                .columns([order::Column::Id, order::Column::SaleId, order::Column::UserId])
                .filter(Expr::col(order::Column::PayByMs).lte(self.clock()))
                .filter(order::Column::SaleId.is_not_in(except.iter().map(SaleId::as_str)))
                .filter(order::Column::Id.not_in_subquery(paid_but_not_applied(Target::Order)))
                .filter(order::Column::Id.not_in_subquery(paid_but_not_applied(Target::Retaken)))
                .order_by_asc(order::Column::PayByMs)
                .limit(limit)
                .into_tuple()
                .all(&self.db)
                .await?;
            let readable = |(id, sale, user): (Uuid, String, String)| {
                let read = || {
                    Some(OverdueOrder { id: id.into(), sale: sale.parse().ok()?, user: user.parse().ok()? })
                };
                // It must not keep the others from expiring.
                read().or_else(|| {
                    tracing::error!(error = %StoreError::unreadable("an order", (&id, &sale, &user)));
                    None
                })
            };
            Ok(rows.into_iter().filter_map(readable).collect())
        })
        .await
    }
}

/// Which order of a payment.
#[derive(Clone, Copy)]
enum Target {
    /// The order that was paid for.
    Order,
    /// The new order that took a unit again.
    Retaken,
}

impl Target {
    fn column(self) -> payment_event::Column {
        match self {
            Self::Order => payment_event::Column::OrderId,
            Self::Retaken => payment_event::Column::NewOrderId,
        }
    }
}

/// Orders whose verified payment waits to be applied, as a subquery.
fn paid_but_not_applied(target: Target) -> SelectStatement {
    Query::select()
        .column(target.column())
        .from(payment_event::Entity)
        .and_where(payment_event::Column::State.eq(PaymentState::Pending.as_str()))
        .and_where(payment_event::Column::Kind.eq(PaymentKind::Paid.as_str()))
        // NOT IN is never true for a list with a NULL.
        .and_where(target.column().is_not_null())
        .to_owned()
}

/// Which of these orders have a verified payment that waits to be applied.
pub(in crate::store) async fn paying(
    transaction: &DatabaseTransaction,
    orders: Vec<Uuid>,
) -> Result<Vec<Uuid>, StoreError> {
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let mut paying = Vec::new();
    for target in [Target::Order, Target::Retaken] {
        let found: Vec<Uuid> = payment_event::Entity::find()
            .select_only()
            .column(target.column())
            .filter(is_one_of(transaction, target.column(), orders.iter().copied()))
            .filter(payment_event::Column::State.eq(PaymentState::Pending.as_str()))
            .filter(payment_event::Column::Kind.eq(PaymentKind::Paid.as_str()))
            .into_tuple()
            .all(transaction)
            .await?;
        paying.extend(found);
    }
    Ok(paying)
}
