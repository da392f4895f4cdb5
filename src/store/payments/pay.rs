//! Applying a payment event to its order: the event's end and its effect are committed together.

use sea_orm::{DatabaseTransaction, EntityTrait as _};

use super::event::{Applied, Payment, end, lock_events, lock_or_insert, set_state};
use crate::domain::{Act, ActRequest, OrderStatus};
use crate::fault::fault;
use crate::store::entities::order;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::orders::{Change, Changed};
use crate::store::states::{PaymentKind, PaymentState};
use crate::store::transaction::MayCommit;

impl Store {
    /// Records an event and applies it in one transaction, so the event is marked done with its order's change. Call it
    /// under the lease of the order's user, with the lease's token. May be repeated.
    ///
    /// `may_commit` is called before COMMIT, as in [`Store::record`].
    pub async fn apply_payment(
        &self,
        payment: &Payment,
        asked: &ActRequest,
        fence: i64,
        may_commit: MayCommit<'_>,
    ) -> Result<Applied, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let known = lock_or_insert(&transaction, payment).await?;
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
            self.commit_if(may_commit, transaction, &[payment.sale.as_str()]).await?;
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
                end(transaction, payment, PaymentState::Retaken, None).await
            }
            Changed::Now(_) => end(transaction, payment, PaymentState::Applied, None).await,
            Changed::Already(_) => {
                let why = Some("the order was paid before");
                end(transaction, payment, PaymentState::Late, why).await
            }
            Changed::NoRow => Ok(Applied::Waits(payment, "the order has no row yet")),
            Changed::Stale => Ok(Applied::Stale),
            Changed::Refused(_) if payment.new_order.is_some() => {
                let why = Some("the order that took a unit again has ended, too");
                end(transaction, payment, PaymentState::Late, why).await
            }
            Changed::Refused(row) => self.apply_late(transaction, payment, row.status).await,
        }
    }

    /// The order has ended. The money may have gone back already, or another payment may have taken a unit again.
    async fn apply_late(
        &self,
        transaction: &DatabaseTransaction,
        payment: Payment,
        from: OrderStatus,
    ) -> Result<Applied, StoreError> {
        let others = lock_events(transaction, payment.order).await?;
        let refund = others
            .iter()
            .find(|other| other.kind == PaymentKind::Refunded && other.state == PaymentState::Pending);
        if let Some(refund) = refund {
            set_state(transaction, refund, PaymentState::Applied, Some("its payment came after it")).await?;
            let why = Some("it was given back before it came");
            return end(transaction, payment, PaymentState::Refunded, why).await;
        }
        let retaken = others.iter().any(|other| {
            other.event_id != payment.event_id && other.kind == PaymentKind::Paid && other.new_order.is_some()
        });
        if retaken {
            let why = Some("another payment has taken a unit again");
            return end(transaction, payment, PaymentState::Late, why).await;
        }
        Ok(Applied::Late(payment, from))
    }
}

/// Why the event does not belong to its order, if it names another sale or user.
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

/// A mismatched refund gives back a payment with the same mismatch, and nothing else.
async fn mismatched(
    transaction: &DatabaseTransaction,
    payment: Payment,
    why: Option<&'static str>,
) -> Result<Applied, StoreError> {
    if payment.kind == PaymentKind::Refunded {
        let others = lock_events(transaction, payment.order).await?;
        let given = others.iter().find(|other| {
            let same = (&other.sale, &other.user) == (&payment.sale, &payment.user);
            same && other.kind == PaymentKind::Paid && other.state == PaymentState::Mismatch
        });
        if let Some(given) = given {
            set_state(transaction, given, PaymentState::Refunded, given.detail.as_deref()).await?;
            return end(transaction, payment, PaymentState::Applied, why).await;
        }
    }
    end(transaction, payment, PaymentState::Mismatch, why).await
}
