//! What payment providers have told, each event once, until it has had its effect.

use std::time::Duration;

use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, DatabaseTransaction, EntityTrait as _, PaginatorTrait as _,
    QueryFilter as _, QueryOrder as _, QuerySelect as _, SqlErr,
};

use super::entities::payment_event;
use super::journal::{Touched, log};
use super::{Store, StoreError};
use crate::domain::{Millis, OrderId, SaleId, UserId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentKind {
    Paid,
    Refunded,
}

impl PaymentKind {
    const ALL: [Self; 2] = [Self::Paid, Self::Refunded];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Paid => "paid",
            Self::Refunded => "refunded",
        }
    }
}

/// What has become of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentState {
    /// It waits: for its order's row, or for a server.
    Pending,
    /// The order has had it.
    Applied,
    /// The money is for an order that has ended, or has been paid before: to be refunded.
    Late,
    /// A new order took a unit again, and has it.
    Retaken,
    /// It was late, and the money went back.
    Refunded,
    /// It names another sale or user than the order's: nothing was changed.
    Mismatch,
}

impl PaymentState {
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Applied, Self::Late, Self::Retaken, Self::Refunded, Self::Mismatch];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Applied => "applied",
            Self::Late => "late",
            Self::Retaken => "retaken",
            Self::Refunded => "refunded",
            Self::Mismatch => "mismatch",
        }
    }
}

/// A verified event of a provider.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Payment {
    pub provider: String,
    pub event_id: String,
    pub kind: PaymentKind,
    #[serde(rename = "sale_id")]
    pub sale: SaleId,
    #[serde(rename = "order_id")]
    pub order: OrderId,
    /// Who paid, where the provider says so.
    #[serde(rename = "user_id", skip_serializing_if = "Option::is_none")]
    pub user: Option<UserId>,
    pub state: PaymentState,
    /// The order that took a unit again.
    #[serde(rename = "new_order_id", skip_serializing_if = "Option::is_none")]
    pub new_order: Option<OrderId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    pub received_at: Millis,
}

impl Payment {
    /// Is it the same event, not another with the same id?
    pub fn is_same_event(&self, other: &Payment) -> bool {
        (&self.kind, &self.sale, &self.order, &self.user)
            == (&other.kind, &other.sale, &other.order, &other.user)
    }
}

/// Until a new event is looked at by others than the one who brought it.
const OWN_TRY: Duration = Duration::from_secs(2);

impl Store {
    pub async fn payment(&self, provider: &str, event_id: &str) -> Result<Option<Payment>, StoreError> {
        let id = (provider.to_owned(), event_id.to_owned());
        self.within(async {
            payment_event::Entity::find_by_id(id).one(&self.db).await?.map(read_payment).transpose()
        })
        .await
    }

    /// What was paid for an order, and given back, the oldest first.
    pub async fn payments_of(&self, order: OrderId) -> Result<Vec<Payment>, StoreError> {
        self.within(async {
            let rows = payment_event::Entity::find()
                .filter(payment_event::Column::OrderId.eq(order.uuid()))
                .order_by_asc(payment_event::Column::ReceivedAtMs)
                .all(&self.db)
                .await?;
            rows.into_iter().map(read_payment).collect()
        })
        .await
    }

    /// Events of a sale whose money waits, or has to go back.
    pub async fn count_payments_owed(&self, sale: &SaleId) -> Result<u64, StoreError> {
        let owed = [PaymentState::Pending, PaymentState::Late, PaymentState::Mismatch];
        self.within(async {
            let rows = payment_event::Entity::find()
                .filter(payment_event::Column::SaleId.eq(sale.as_str()))
                .filter(payment_event::Column::State.is_in(owed.map(PaymentState::as_str)));
            Ok(rows.count(&self.db).await?)
        })
        .await
    }

    /// Writes a new event down, as pending. On return it is durable; the answer is the event as it
    /// stands, which is another where its id was there before.
    pub async fn receive_payment(&self, payment: &Payment) -> Result<Payment, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let known = known_or_new(&transaction, payment).await?;
            transaction.commit().await?;
            Ok(known)
        })
        .await
    }

    /// Events that wait and are due, by this host's clock, the oldest first.
    pub async fn payments_due(&self, limit: u64) -> Result<Vec<Payment>, StoreError> {
        self.within(async {
            let rows = payment_event::Entity::find()
                .filter(payment_event::Column::State.eq(PaymentState::Pending.as_str()))
                .filter(payment_event::Column::DueAtMs.lte(Millis::now().0))
                .order_by_asc(payment_event::Column::DueAtMs)
                .limit(limit)
                .all(&self.db)
                .await?;
            rows.into_iter().map(read_payment).collect()
        })
        .await
    }

    /// Events in one state, the newest first.
    pub async fn payments(&self, state: PaymentState, limit: u64) -> Result<Vec<Payment>, StoreError> {
        self.within(async {
            let rows = payment_event::Entity::find()
                .filter(payment_event::Column::State.eq(state.as_str()))
                .order_by_desc(payment_event::Column::ReceivedAtMs)
                .limit(limit)
                .all(&self.db)
                .await?;
            rows.into_iter().map(read_payment).collect()
        })
        .await
    }

    /// Writes what became of an event that waits, and for which no unit was taken again. `false` where
    /// that is so no longer.
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
            touched(&transaction, payment).await?;
            transaction.commit().await?;
            Ok(updated.rows_affected == 1)
        })
        .await
    }

    /// Leaves an event waiting for a time, with why. `false` where it waits no longer.
    pub async fn postpone_payment(
        &self,
        payment: &Payment,
        wait: Duration,
        new_order: Option<OrderId>,
        detail: &str,
    ) -> Result<bool, StoreError> {
        let now = Millis::now();
        let detail: String = detail.chars().take(200).collect();
        self.within(async {
            let transaction = self.begin().await?;
            let mut update = payment_event::Entity::update_many()
                .col_expr(payment_event::Column::DueAtMs, Expr::val(now.plus(wait).0))
                .col_expr(payment_event::Column::Detail, Expr::val(detail))
                .col_expr(payment_event::Column::UpdatedAtMs, Expr::val(now.0));
            if let Some(new_order) = new_order {
                update = update.col_expr(payment_event::Column::NewOrderId, Expr::val(new_order.uuid()));
            }
            let updated = update
                .filter(payment_event::Column::Provider.eq(payment.provider.as_str()))
                .filter(payment_event::Column::EventId.eq(payment.event_id.as_str()))
                .filter(payment_event::Column::State.eq(PaymentState::Pending.as_str()))
                .exec(&transaction)
                .await?;
            touched(&transaction, payment).await?;
            transaction.commit().await?;
            Ok(updated.rows_affected == 1)
        })
        .await
    }
}

/// The event as it stands, locked; written down as pending where it is new.
pub(super) async fn known_or_new(
    transaction: &DatabaseTransaction,
    payment: &Payment,
) -> Result<Payment, StoreError> {
    let id = (payment.provider.clone(), payment.event_id.clone());
    if let Some(known) = payment_event::Entity::find_by_id(id).lock_exclusive().one(transaction).await? {
        return read_payment(known);
    }
    let row = payment_event::ActiveModel {
        provider: Set(payment.provider.clone()),
        event_id: Set(payment.event_id.clone()),
        kind: Set(payment.kind.as_str().into()),
        sale_id: Set(payment.sale.to_string()),
        order_id: Set(payment.order.uuid()),
        user_id: Set(payment.user.as_ref().map(ToString::to_string)),
        state: Set(PaymentState::Pending.as_str().into()),
        new_order_id: Set(None),
        detail: Set(None),
        received_at_ms: Set(payment.received_at.0),
        due_at_ms: Set(payment.received_at.plus(OWN_TRY).0),
        updated_at_ms: Set(payment.received_at.0),
    };
    // Two copies at once: one of them meets the key, and is brought again.
    payment_event::Entity::insert(row).exec_without_returning(transaction).await.map_err(
        |error| match error.sql_err() {
            Some(SqlErr::UniqueConstraintViolation(_)) => {
                StoreError::Away("the same event is being written down".into())
            }
            _ => error.into(),
        },
    )?;
    touched(transaction, payment).await?;
    Ok(payment.clone())
}

pub(super) async fn of_order(
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

pub(super) async fn set(
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
    touched(transaction, payment).await
}

/// Has the event logged.
async fn touched(transaction: &DatabaseTransaction, payment: &Payment) -> Result<(), StoreError> {
    let touched = Touched::Payment { provider: &payment.provider, event_id: &payment.event_id };
    log(transaction, payment.sale.as_str(), [touched]).await
}

fn read_payment(row: payment_event::Model) -> Result<Payment, StoreError> {
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
