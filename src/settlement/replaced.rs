//! An order that the database refused because its user had another one. The gate learns of the other one too, so nobody
//! may end that meanwhile: it is read, and the gate called, under the user's lease.

use super::{SettlementError, Settler, settlement_of};
use crate::domain::{Failure, Order};
use crate::gate::{Outcome, Settlement};
use crate::lease::COMMIT_MARGIN;

impl Settler<'_> {
    /// Settles one order whose row is committed; `failure` is the row's. On `Ok(true)` the gate has the outcome. `false`
    /// if another process holds the user's lease: repeat it, or leave it to the sweep. Idempotent.
    pub async fn settle_order(
        &self,
        order: &Order,
        failure: Option<Failure>,
    ) -> Result<bool, SettlementError> {
        match settlement_of(order, failure) {
            Some(settlement) => {
                self.gate.settle(&order.sale, &[settlement]).await.map(|_| true).map_err(Into::into)
            }
            None => self.replace(order).await,
        }
    }

    async fn replace(&self, order: &Order) -> Result<bool, SettlementError> {
        let Some(guard) = self.lease(&order.sale, &order.user).await else { return Ok(false) };
        let replaced = async {
            let winner = self.store.live_order_of(order).await?.map(Box::new);
            if !guard.is_valid_for(COMMIT_MARGIN) {
                return Ok(false);
            }
            let outcome = Outcome::Replaced(winner);
            let settlement = Settlement { id: order.id, user: order.user.clone(), outcome };
            self.gate.settle(&order.sale, &[settlement]).await?;
            Ok(true)
        };
        let replaced = replaced.await;
        let _ = guard.release().await;
        replaced
    }
}
