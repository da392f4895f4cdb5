//! Applying a refund event.

use sea_orm::DatabaseTransaction;

use super::event::{Applied, Payment, Recording, lock_events, set_state};
use crate::domain::{Act, ActRequest};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::orders::{Change, Changed};
use crate::store::states::{PaymentKind, PaymentState};

impl Store {
    /// Applies a refund to the payment that it gives back, or to its order.
    pub(super) async fn apply_refunded(
        &self,
        transaction: &DatabaseTransaction,
        refund: Recording,
        asked: &ActRequest,
        fence: i64,
    ) -> Result<Applied, StoreError> {
        let others = lock_events(transaction, refund.payment.order).await?;
        let paid =
            |state| others.iter().find(move |other| other.kind == PaymentKind::Paid && other.state == state);
        // One refund gives back one payment, preferably one that no order has.
        if let Some(late) = paid(PaymentState::Late) {
            set_state(transaction, late, PaymentState::Refunded, late.detail.as_deref()).await?;
            let why = Some("a late payment went back");
            return refund.end(transaction, PaymentState::Applied, why).await;
        }
        match paid(PaymentState::Pending) {
            Some(pending) if pending.new_order.is_none() => {
                set_state(transaction, pending, PaymentState::Refunded, Some("given back while it waited"))
                    .await?;
                let why = Some("a payment that waited went back");
                return refund.end(transaction, PaymentState::Applied, why).await;
            }
            Some(_) => {
                let refund = refund.keep(transaction).await?;
                return Ok(Applied::Waits(refund, "the order that took a unit again is not paid yet"));
            }
            None => {}
        }
        // The orders that took a unit again, or the order itself if there are none.
        let retaken = others.iter().filter(|other| other.state == PaymentState::Retaken);
        let mut to_refund: Vec<_> = retaken.filter_map(|paid| paid.new_order).map(Some).collect();
        if to_refund.is_empty() {
            to_refund.push(None);
        }
        let mut refunded_before = false;
        for new_order in to_refund {
            let id = new_order.unwrap_or(refund.payment.order);
            let change = Change { id, act: Act::Refund, asked: asked.clone(), fence };
            let changed = self.try_changes(transaction, &[change]).await?.pop();
            match changed.unwrap_or(Changed::NoRow) {
                Changed::Now(_) => {
                    let refund = Recording { payment: Payment { new_order, ..refund.payment }, ..refund };
                    return refund.end(transaction, PaymentState::Applied, None).await;
                }
                Changed::Already(_) => refunded_before = true,
                Changed::Stale => return Ok(Applied::Stale),
                Changed::NoRow | Changed::Refused(_) => {}
            }
        }
        if refunded_before {
            let why = Some("the order was refunded before");
            return refund.end(transaction, PaymentState::Applied, why).await;
        }
        // The payment may still arrive. The refund waits, so that the order is not paid afterwards.
        Ok(Applied::Waits(refund.keep(transaction).await?, "no payment of it is known yet"))
    }
}
