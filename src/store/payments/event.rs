//! Payment events: each is recorded once and kept until it has taken effect.

use std::time::Duration;

use sea_orm::sea_query::{Expr, ExprTrait as _, InsertStatement, Query, SimpleExpr};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, DbBackend, EntityTrait as _,
    QueryFilter as _, QueryOrder as _, QuerySelect as _, SqlErr,
};

use crate::domain::{Millis, OrderId, OrderStatus, SaleId, UserId};
use crate::store::clock::clock_of;
use crate::store::entities::payment_event;
use crate::store::error::StoreError;
use crate::store::log_outbox::{Touched, log};
use crate::store::states::{PaymentKind, PaymentState};

/// A verified event of a payment provider.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Payment {
    /// The provider's name in the configuration.
    pub provider: String,
    /// The provider's id of the event.
    pub event_id: String,
    /// Payment or refund.
    pub kind: PaymentKind,
    /// The sale that the event names.
    #[serde(rename = "sale_id")]
    pub sale: SaleId,
    /// The order that the event names.
    #[serde(rename = "order_id")]
    pub order: OrderId,
    /// Who paid, if the provider says so.
    #[serde(rename = "user_id", skip_serializing_if = "Option::is_none")]
    pub user: Option<UserId>,
    /// How far it has come.
    pub state: PaymentState,
    /// The new order that took a unit again.
    #[serde(rename = "new_order_id", skip_serializing_if = "Option::is_none")]
    pub new_order: Option<OrderId>,
    /// Why it is in this state, if that needs explaining.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// When it arrived.
    pub received_at: Millis,
}

impl Payment {
    /// Whether it is the same event, and not a different one with the same id.
    pub fn is_same_event(&self, other: &Payment) -> bool {
        (&self.kind, &self.sale, &self.order, &self.user)
            == (&other.kind, &other.sale, &other.order, &other.user)
    }
}

/// The outcome of applying an event.
#[derive(Debug, Clone)]
pub enum Applied {
    /// It has ended, now or before, in one transaction with its effect.
    Ended(Payment),
    /// It is recorded and waits, for this reason.
    Waits(Payment, &'static str),
    /// It is recorded, but its order has ended, in this state: the caller decides about the money.
    Late(Payment, OrderStatus),
    /// A holder with a higher token has written for the user: take the lease again.
    Stale,
}

/// For this long only the process that received a new event tries to apply it.
const OWN_TRY: Duration = Duration::from_secs(2);

/// An event in a transaction: as it is recorded, or as it is going to be.
pub(super) struct Recording {
    pub(super) payment: Payment,
    /// The database does not have it yet, as far as the caller knows. It is written once, with its outcome.
    pub(super) is_new: bool,
}

impl Recording {
    /// Ends the event, in the transaction of its effect.
    pub(super) async fn end(
        self,
        transaction: &DatabaseTransaction,
        state: PaymentState,
        why: Option<&str>,
    ) -> Result<Applied, StoreError> {
        let ended = Payment { state, detail: why.map(str::to_owned), ..self.payment };
        if self.is_new {
            insert(transaction, std::slice::from_ref(&ended)).await?;
        } else {
            set_state(transaction, &ended, state, why).await?;
        }
        Ok(Applied::Ended(ended))
    }

    /// Leaves the event pending; on return it is recorded.
    pub(super) async fn keep(self, transaction: &DatabaseTransaction) -> Result<Payment, StoreError> {
        if self.is_new {
            insert(transaction, std::slice::from_ref(&self.payment)).await?;
        }
        Ok(self.payment)
    }
}

/// Locks the event's row. If there is none, the event is new.
pub(super) async fn lock_event(
    transaction: &DatabaseTransaction,
    payment: &Payment,
) -> Result<Recording, StoreError> {
    let id = (payment.provider.clone(), payment.event_id.clone());
    let known = payment_event::Entity::find_by_id(id).lock_exclusive().one(transaction).await?;
    let is_new = known.is_none();
    let payment = known.map(read_payment).transpose()?.unwrap_or_else(|| payment.clone());
    Ok(Recording { payment, is_new })
}

/// Inserts new events of one sale, and logs them. Of two copies at once, one violates the key and is retried.
pub(super) async fn insert(
    transaction: &DatabaseTransaction,
    payments: &[Payment],
) -> Result<(), StoreError> {
    let Some(Payment { sale, .. }) = payments.first() else { return Ok(()) };
    let insertion = insertion_of(payments, transaction.get_database_backend())?;
    transaction.execute(&insertion).await.map_err(|error| match error.sql_err() {
        Some(SqlErr::UniqueConstraintViolation(_)) => {
            StoreError::Away("another process is recording the same event".into())
        }
        _ => error.into(),
    })?;
    log(transaction, sale.as_str(), payments.iter().map(touched)).await
}

/// Inserts events. The database's clock decides when a pending one is due: whichever front is to try it again may have
/// another clock than the one that received it.
fn insertion_of(payments: &[Payment], backend: DbBackend) -> Result<InsertStatement, StoreError> {
    use payment_event::Column;
    let due = clock_of(backend).add(i64::try_from(OWN_TRY.as_millis()).unwrap_or(i64::MAX));
    let mut insertion = Query::insert();
    insertion.into_table(payment_event::Entity);
    for payment in payments {
        let columns: [(Column, SimpleExpr); 11] = [
            (Column::Provider, payment.provider.as_str().into()),
            (Column::EventId, payment.event_id.as_str().into()),
            (Column::Kind, payment.kind.as_str().into()),
            (Column::SaleId, payment.sale.as_str().into()),
            (Column::OrderId, payment.order.uuid().into()),
            (Column::UserId, payment.user.as_ref().map(ToString::to_string).into()),
            (Column::State, payment.state.as_str().into()),
            (Column::Detail, payment.detail.as_deref().into()),
            (Column::ReceivedAtMs, payment.received_at.0.into()),
            (Column::DueAtMs, due.clone()),
            (Column::UpdatedAtMs, payment.received_at.0.into()),
        ];
        let (names, values): (Vec<Column>, Vec<SimpleExpr>) = columns.into_iter().unzip();
        insertion.columns(names);
        insertion.values(values).map_err(|error| StoreError::Broken(error.to_string()))?;
    }
    Ok(insertion)
}

/// All events of an order, locked, oldest first.
pub(in crate::store) async fn lock_events(
    transaction: &DatabaseTransaction,
    order: OrderId,
) -> Result<Vec<Payment>, StoreError> {
    let rows = payment_event::Entity::find()
        .filter(payment_event::Column::OrderId.eq(order.uuid()))
        .order_by_asc(payment_event::Column::ReceivedAtMs)
        .lock_exclusive()
        .all(transaction)
        .await?;
    rows.into_iter().map(read_payment).collect()
}

/// Sets an event's state, and logs it.
pub(in crate::store) async fn set_state(
    transaction: &DatabaseTransaction,
    payment: &Payment,
    state: PaymentState,
    why: Option<&str>,
) -> Result<(), StoreError> {
    payment_event::Entity::update_many()
        .col_expr(payment_event::Column::State, Expr::val(state.as_str()))
        .col_expr(payment_event::Column::Detail, Expr::val(why.map(str::to_owned)))
        .col_expr(payment_event::Column::UpdatedAtMs, Expr::val(Millis::now().0))
        .filter(payment_event::Column::Provider.eq(payment.provider.as_str()))
        .filter(payment_event::Column::EventId.eq(payment.event_id.as_str()))
        .exec(transaction)
        .await?;
    log_event(transaction, payment).await
}

/// Puts the event into the log outbox.
pub(in crate::store) async fn log_event(
    transaction: &DatabaseTransaction,
    payment: &Payment,
) -> Result<(), StoreError> {
    log(transaction, payment.sale.as_str(), [touched(payment)]).await
}

fn touched(payment: &Payment) -> Touched<'_> {
    Touched::Payment { provider: &payment.provider, event_id: &payment.event_id }
}

/// A payment event's row as a domain value.
pub(super) fn read_payment(row: payment_event::Model) -> Result<Payment, StoreError> {
    let unreadable = || StoreError::unreadable("a payment", &row);
    let kind = PaymentKind::ALL.into_iter().find(|kind| kind.as_str() == row.kind);
    let state = PaymentState::ALL.into_iter().find(|state| state.as_str() == row.state);
    Ok(Payment {
        kind: kind.ok_or_else(unreadable)?,
        state: state.ok_or_else(unreadable)?,
        sale: row.sale_id.parse().map_err(|_| unreadable())?,
        order: row.order_id.into(),
        user: row.user_id.as_deref().map(str::parse).transpose().map_err(|_| unreadable())?,
        new_order: row.new_order_id.map(Into::into),
        received_at: Millis(row.received_at_ms),
        provider: row.provider,
        event_id: row.event_id,
        detail: row.detail,
    })
}
