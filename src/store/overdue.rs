//! Orders that nobody has paid in time.

use sea_orm::sea_query::{Expr, ExprTrait as _, Query, SelectStatement};
use sea_orm::{
    ColumnTrait as _, DatabaseTransaction, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};
use uuid::Uuid;

use super::entities::{order, payment_event};
use super::many::is_one_of;
use super::payments::{PaymentKind, PaymentState};
use super::{Store, StoreError};
use crate::domain::{OrderId, SaleId, UserId};

/// An order whose time to be paid is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverdueOrder {
    pub id: OrderId,
    pub sale: SaleId,
    pub user: UserId,
}

impl Store {
    /// Orders whose time to be paid is over, by the database's clock, the longest first.
    pub async fn overdue_orders(&self, limit: u64) -> Result<Vec<OverdueOrder>, StoreError> {
        self.within(async {
            let rows: Vec<(Uuid, String, String)> = order::Entity::find()
                .select_only()
                .columns([order::Column::Id, order::Column::SaleId, order::Column::UserId])
                .filter(Expr::col(order::Column::PayByMs).lte(self.clock()))
                .filter(order::Column::Id.not_in_subquery(paid_but_not_applied(Target::Order)))
                .filter(order::Column::Id.not_in_subquery(paid_but_not_applied(Target::Retaken)))
                .order_by_asc(order::Column::PayByMs)
                .limit(limit)
                .into_tuple()
                .all(&self.db)
                .await?;
            rows.into_iter()
                .map(|(id, sale, user)| {
                    let unreadable = |_| StoreError::unreadable("an order", (&id, &sale, &user));
                    Ok(OverdueOrder {
                        id: id.into(),
                        sale: sale.parse().map_err(unreadable)?,
                        user: user.parse().map_err(unreadable)?,
                    })
                })
                .collect()
        })
        .await
    }
}

/// Which of its orders a payment is for.
#[derive(Clone, Copy)]
enum Target {
    Order,
    /// The one that took a unit again.
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

/// Orders whose verified payment waits to be applied.
fn paid_but_not_applied(target: Target) -> SelectStatement {
    Query::select()
        .column(target.column())
        .from(payment_event::Entity)
        .and_where(payment_event::Column::State.eq(PaymentState::Pending.as_str()))
        .and_where(payment_event::Column::Kind.eq(PaymentKind::Paid.as_str()))
        // NOT IN a list with a NULL is never true.
        .and_where(target.column().is_not_null())
        .to_owned()
}

pub(super) async fn paying(
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
