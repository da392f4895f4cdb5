//! Applying a payment event to its order: the event's end and its effect are committed together.

use sea_orm::DatabaseTransaction;

use super::event::{Applied, Payment, Recording, lock_event, lock_events, set_state};
use crate::domain::{Act, ActRequest, Order, OrderStatus, SaleId};
use crate::fault::fault;
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::orders::{Change, Changed};
use crate::store::states::{PaymentKind, PaymentState};
use crate::store::transaction::MayCommit;

/// An event to apply, and what its caller has read.
#[derive(Clone, Copy)]
pub struct Applying<'a> {
    /// The event.
    pub payment: &'a Payment,
    /// The order that it names.
    pub order: &'a Order,
    /// The database did not have the event. If it has come to have it, nothing is written, and the call fails.
    pub is_new: bool,
}

impl Store {
    /// Records an event and applies it in one transaction, so the event is marked done with its order's change. Call it
    /// under the lease of the order's user, with the lease's token. May be repeated.
    ///
    /// `may_commit` is called before COMMIT, as in [`Store::record`].
    pub async fn apply_payment(
        &self,
        Applying { payment, order, is_new }: Applying<'_>,
        asked: &ActRequest,
        fence: i64,
        may_commit: MayCommit<'_>,
    ) -> Result<Applied, StoreError> {
        self.within(async {
            let transaction = self.begin().await?;
            let known = match is_new {
                true => Recording { payment: payment.clone(), is_new },
                false => lock_event(&transaction, payment).await?,
            };
            let event = &known.payment;
            let applied = if event.state != PaymentState::Pending || !event.is_same_event(payment) {
                Applied::Ended(known.payment)
            } else if let Some(why) = contradiction(order, event) {
                mismatched(&transaction, known, why).await?
            } else {
                match event.kind {
                    PaymentKind::Paid => self.apply_paid(&transaction, known, asked, fence).await?,
                    PaymentKind::Refunded => self.apply_refunded(&transaction, known, asked, fence).await?,
                }
            };
            if matches!(applied, Applied::Stale) {
                transaction.rollback().await?;
                return Ok(applied);
            }
            self.commit_payments(may_commit, transaction, &payment.sale).await?;
            Ok(applied)
        })
        .await
    }

    /// Commits payments of one sale and their effect.
    pub(super) async fn commit_payments(
        &self,
        may_commit: MayCommit<'_>,
        transaction: DatabaseTransaction,
        sale: &SaleId,
    ) -> Result<(), StoreError> {
        self.commit_if(may_commit, transaction, &[sale.as_str()]).await?;
        fault!("paid.after", return Err(StoreError::Away("injected".into())));
        Ok(())
    }

    async fn apply_paid(
        &self,
        transaction: &DatabaseTransaction,
        event: Recording,
        asked: &ActRequest,
        fence: i64,
    ) -> Result<Applied, StoreError> {
        let retaking = event.payment.new_order;
        let others = lock_events(transaction, event.payment.order).await?;
        let refund = others
            .iter()
            .find(|other| other.kind == PaymentKind::Refunded && other.state == PaymentState::Pending);
        if let Some(refund) = refund.filter(|_| retaking.is_none()) {
            set_state(transaction, refund, PaymentState::Applied, Some("its payment came after it")).await?;
            let why = Some("it was given back before it came");
            return event.end(transaction, PaymentState::Refunded, why).await;
        }
        let id = retaking.unwrap_or(event.payment.order);
        let change = Change { id, act: Act::Pay, asked: asked.clone(), fence };
        let changed = self.try_changes(transaction, &[change]).await?.pop();
        match changed.unwrap_or(Changed::NoRow) {
            Changed::Now(_) if retaking.is_some() => {
                event.end(transaction, PaymentState::Retaken, None).await
            }
            Changed::Now(_) => event.end(transaction, PaymentState::Applied, None).await,
            Changed::Already(_) => {
                let why = Some("the order was paid before");
                event.end(transaction, PaymentState::Late, why).await
            }
            Changed::NoRow => Ok(Applied::Waits(event.keep(transaction).await?, "the order has no row yet")),
            Changed::Stale => Ok(Applied::Stale),
            Changed::Refused(_) if retaking.is_some() => {
                let why = Some("the order that took a unit again has ended, too");
                event.end(transaction, PaymentState::Late, why).await
            }
            Changed::Refused(row) => apply_late(transaction, event, &others, row.status).await,
        }
    }
}

/// The order has ended. Another payment of it may have taken a unit again, or be about to.
async fn apply_late(
    transaction: &DatabaseTransaction,
    event: Recording,
    others: &[Payment],
    from: OrderStatus,
) -> Result<Applied, StoreError> {
    let this = (&event.payment.provider, &event.payment.event_id);
    let payments = others
        .iter()
        .filter(|other| other.kind == PaymentKind::Paid && (&other.provider, &other.event_id) != this);
    if payments.clone().any(|other| other.new_order.is_some()) {
        let why = Some("another payment has taken a unit again");
        return event.end(transaction, PaymentState::Late, why).await;
    }
    // A unit is taken after this transaction, so only one of them may try. Of those that are recorded it is the earliest,
    // since otherwise two could wait for each other.
    let came = |payment: &Payment| (payment.received_at, payment.provider.clone(), payment.event_id.clone());
    let this = came(&event.payment);
    let is_first = |other: &Payment| event.is_new || came(other) < this;
    if payments.clone().any(|other| other.state == PaymentState::Pending && is_first(other)) {
        let event = event.keep(transaction).await?;
        return Ok(Applied::Waits(event, "another payment of the order is still pending"));
    }
    Ok(Applied::Late(event.keep(transaction).await?, from))
}

/// Why the event does not belong to its order, if it names another sale or user.
fn contradiction(order: &Order, payment: &Payment) -> Option<&'static str> {
    if order.sale != payment.sale {
        return Some("the order is of another sale");
    }
    let anothers = payment.user.as_ref().is_some_and(|user| order.user != *user);
    anothers.then_some("the order is another user's")
}

/// A mismatched refund gives back a payment with the same mismatch, and nothing else.
async fn mismatched(
    transaction: &DatabaseTransaction,
    event: Recording,
    why: &'static str,
) -> Result<Applied, StoreError> {
    let payment = &event.payment;
    if payment.kind == PaymentKind::Refunded {
        let others = lock_events(transaction, payment.order).await?;
        let given = others.iter().find(|other| {
            let same = (&other.sale, &other.user) == (&payment.sale, &payment.user);
            same && other.kind == PaymentKind::Paid && other.state == PaymentState::Mismatch
        });
        if let Some(given) = given {
            set_state(transaction, given, PaymentState::Refunded, given.detail.as_deref()).await?;
            return event.end(transaction, PaymentState::Applied, Some(why)).await;
        }
    }
    event.end(transaction, PaymentState::Mismatch, Some(why)).await
}
