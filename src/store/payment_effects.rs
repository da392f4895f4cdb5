//! What a payment does to its order: the event and its effect are committed together.

use sea_orm::{DatabaseTransaction, EntityTrait as _};

use super::entities::order;
use super::life::{Change, Changed};
use super::payments::{Payment, PaymentKind, PaymentState, known_or_new, of_order, set};
use super::{Store, StoreError};
use crate::domain::{Act, ActRequest, OrderStatus};
use crate::fault::fault;

/// What came of applying an event.
#[derive(Debug, Clone)]
pub enum Applied {
    /// It has ended, now or before; the end and its effect were committed together.
    Ended(Payment),
    /// It is written down, and waits, for this reason.
    Waits(Payment, &'static str),
    /// It is written down, and its order has ended, in this state: what is to become of the money?
    Late(Payment, OrderStatus),
    /// A holder with a higher token has written for the user: take the lease again.
    Stale,
}

impl Store {
    /// Writes an event down and applies it, in one transaction: it has ended exactly where its order has
    /// had it. Under the lease of the order's user, with its token. May be repeated.
    ///
    /// `may_commit` is asked before COMMIT, as in [`Store::record`].
    pub async fn apply_payment(
        &self,
        payment: &Payment,
        asked: &ActRequest,
        fence: i64,
        may_commit: &(dyn Fn() -> bool + Sync),
    ) -> Result<Applied, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let known = known_or_new(&transaction, payment).await?;
            let ended = known.state != PaymentState::Pending || !known.is_same_event(payment);
            let mismatch = if ended { None } else { contradicts(&transaction, &known).await? };
            let applied = match known.kind {
                _ if ended => Applied::Ended(known),
                _ if mismatch.is_some() => mismatched(&transaction, known, mismatch).await?,
                PaymentKind::Paid => self.apply_paid(&transaction, known, asked, fence).await?,
                PaymentKind::Refunded => self.apply_refunded(&transaction, known, asked, fence).await?,
            };
            if matches!(applied, Applied::Stale) {
                transaction.rollback().await?;
                return Ok(applied);
            }
            if !may_commit() {
                transaction.rollback().await?;
                return Err(StoreError::LeaseEnded);
            }
            transaction.commit().await?;
            fault!("paid.after", return Err(StoreError::Away("injected".into())));
            Ok(applied)
        })
        .await
    }

    async fn apply_paid(
        &self,
        transaction: &DatabaseTransaction,
        payment: Payment,
        asked: &ActRequest,
        fence: i64,
    ) -> Result<Applied, StoreError> {
        let id = payment.new_order.unwrap_or(payment.order);
        let change = Change { id, act: Act::Pay, asked: asked.clone(), fence };
        let changed = self.try_changes(transaction, &[change]).await?.pop();
        match changed.unwrap_or(Changed::NoRow) {
            Changed::Now(_) if payment.new_order.is_some() => {
                ended(transaction, payment, PaymentState::Retaken, None).await
            }
            Changed::Now(_) => ended(transaction, payment, PaymentState::Applied, None).await,
            Changed::Already(_) => {
                let why = Some("the order was paid before");
                ended(transaction, payment, PaymentState::Late, why).await
            }
            Changed::NoRow => Ok(Applied::Waits(payment, "the order has no row yet")),
            Changed::Stale => Ok(Applied::Stale),
            Changed::Refused(_) if payment.new_order.is_some() => {
                let why = Some("the order that took a unit again has ended, too");
                ended(transaction, payment, PaymentState::Late, why).await
            }
            Changed::Refused(row) => self.apply_late(transaction, payment, row.status).await,
        }
    }

    /// The order has ended. Was its money given back already, or has another payment taken a unit again?
    async fn apply_late(
        &self,
        transaction: &DatabaseTransaction,
        payment: Payment,
        from: OrderStatus,
    ) -> Result<Applied, StoreError> {
        let others = of_order(transaction, payment.order).await?;
        let refund = others
            .iter()
            .find(|other| other.kind == PaymentKind::Refunded && other.state == PaymentState::Pending);
        if let Some(refund) = refund {
            set(transaction, refund, PaymentState::Applied, Some("its payment came after it")).await?;
            let why = Some("it was given back before it came");
            return ended(transaction, payment, PaymentState::Refunded, why).await;
        }
        let retaken = others.iter().any(|other| {
            other.event_id != payment.event_id && other.kind == PaymentKind::Paid && other.new_order.is_some()
        });
        if retaken {
            let why = Some("another payment has taken a unit again");
            return ended(transaction, payment, PaymentState::Late, why).await;
        }
        Ok(Applied::Late(payment, from))
    }

    async fn apply_refunded(
        &self,
        transaction: &DatabaseTransaction,
        refund: Payment,
        asked: &ActRequest,
        fence: i64,
    ) -> Result<Applied, StoreError> {
        let others = of_order(transaction, refund.order).await?;
        let paid =
            |state| others.iter().find(move |other| other.kind == PaymentKind::Paid && other.state == state);
        // One refund gives back one payment: first what no order has.
        if let Some(late) = paid(PaymentState::Late) {
            set(transaction, late, PaymentState::Refunded, late.detail.as_deref()).await?;
            let why = Some("a late payment went back");
            return ended(transaction, refund, PaymentState::Applied, why).await;
        }
        match paid(PaymentState::Pending) {
            Some(pending) if pending.new_order.is_none() => {
                set(transaction, pending, PaymentState::Refunded, Some("given back while it waited")).await?;
                let why = Some("a payment that waited went back");
                return ended(transaction, refund, PaymentState::Applied, why).await;
            }
            Some(_) => return Ok(Applied::Waits(refund, "the order that took a unit again is not paid yet")),
            None => {}
        }
        let new_order = paid(PaymentState::Retaken).and_then(|paid| paid.new_order);
        let refund = Payment { new_order, ..refund };
        let id = new_order.unwrap_or(refund.order);
        let change = Change { id, act: Act::Refund, asked: asked.clone(), fence };
        let changed = self.try_changes(transaction, &[change]).await?.pop();
        match changed.unwrap_or(Changed::NoRow) {
            Changed::Now(_) => ended(transaction, refund, PaymentState::Applied, None).await,
            Changed::Already(_) => {
                let why = Some("the order was refunded before");
                ended(transaction, refund, PaymentState::Applied, why).await
            }
            Changed::Stale => Ok(Applied::Stale),
            // It may be on its way: what has come out of order must not be paid for afterwards.
            Changed::NoRow | Changed::Refused(_) => {
                Ok(Applied::Waits(refund, "no payment of it is known yet"))
            }
        }
    }
}

/// Does it name another sale or user than the order does?
async fn contradicts(
    transaction: &DatabaseTransaction,
    payment: &Payment,
) -> Result<Option<&'static str>, StoreError> {
    let order = order::Entity::find_by_id(payment.order.uuid()).one(transaction).await?;
    let Some(order) = order else { return Ok(None) };
    if order.sale_id != payment.sale.as_str() {
        return Ok(Some("the order is of another sale"));
    }
    let anothers = payment.user.as_ref().is_some_and(|user| order.user_id != user.as_str());
    Ok(anothers.then_some("the order is another user's"))
}

/// Such a refund gives back such a payment, and nothing else.
async fn mismatched(
    transaction: &DatabaseTransaction,
    payment: Payment,
    why: Option<&'static str>,
) -> Result<Applied, StoreError> {
    if payment.kind == PaymentKind::Refunded {
        let others = of_order(transaction, payment.order).await?;
        let given = others.iter().find(|other| {
            let same = (&other.sale, &other.user) == (&payment.sale, &payment.user);
            same && other.kind == PaymentKind::Paid && other.state == PaymentState::Mismatch
        });
        if let Some(given) = given {
            set(transaction, given, PaymentState::Refunded, given.detail.as_deref()).await?;
            return ended(transaction, payment, PaymentState::Applied, why).await;
        }
    }
    ended(transaction, payment, PaymentState::Mismatch, why).await
}

async fn ended(
    transaction: &DatabaseTransaction,
    payment: Payment,
    state: PaymentState,
    why: Option<&str>,
) -> Result<Applied, StoreError> {
    set(transaction, &payment, state, why).await?;
    Ok(Applied::Ended(Payment { state, detail: why.map(str::to_owned), ..payment }))
}
