//! Applying many new payments of one sale in one transaction.

use super::event::{Payment, insert};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::orders::{Change, Changed};
use crate::store::states::PaymentState;
use crate::store::transaction::MayCommit;

/// A payment that the database did not have when its caller asked, and the change that it makes to its order.
#[derive(Debug, Clone)]
pub struct NewPayment {
    /// The event.
    pub payment: Payment,
    /// [`crate::domain::Act::Pay`] for its order, with the token of its user's lease.
    pub change: Change,
}

impl Store {
    /// Records new payments of one sale, each of another order, and applies them in one transaction. Returns those that are
    /// durable and applied. Nothing is written for any other: its order is not there, its state does not allow it, or a
    /// holder with a higher token has written for its user. If the database has come to have one of the events, nothing is
    /// written, and the call fails.
    ///
    /// `may_commit` is called before COMMIT, as in [`Store::record`].
    pub async fn apply_new_payments(
        &self,
        new: Vec<NewPayment>,
        may_commit: MayCommit<'_>,
    ) -> Result<Vec<Payment>, StoreError> {
        let (payments, changes): (Vec<Payment>, Vec<Change>) =
            new.into_iter().map(|new| (new.payment, new.change)).unzip();
        let Some(sale) = payments.first().map(|payment| payment.sale.clone()) else { return Ok(payments) };
        self.within(async {
            let transaction = self.begin().await?;
            let changed = self.try_changes(&transaction, &changes).await?;
            let paid = payments.into_iter().zip(changed);
            let paid = paid.filter(|(_, changed)| matches!(changed, Changed::Now(_)));
            let applied: Vec<Payment> =
                paid.map(|(payment, _)| Payment { state: PaymentState::Applied, ..payment }).collect();
            if applied.is_empty() {
                transaction.rollback().await?;
                return Ok(applied);
            }
            insert(&transaction, &applied).await?;
            self.commit_payments(may_commit, transaction, &sale).await?;
            Ok(applied)
        })
        .await
    }
}
