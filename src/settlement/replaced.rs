//! Orders that the database refused because their users had others. The gate learns of the others too, so nobody may end
//! one of them meanwhile: they are read, and the gate called, under the users' leases.

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::time::Instant;

use super::{SettlementError, Settler, settlement_of};
use crate::domain::{Failure, Order};
use crate::gate::{Outcome, Settlement};
use crate::lease::{COMMIT_MARGIN, LeaseOptions, release_all};

/// Orders whose winners are read at the same time.
const READS: usize = 4;

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
                self.gate.settle(&order.sale, &[settlement]).await?;
                Ok(true)
            }
            None => Ok(self.settle_replaced(&[order]).await? == 1),
        }
    }

    /// Settles orders of one sale, each of which another order of its user replaced, and returns how many. Those whose
    /// users' leases are held elsewhere are left out: leave them to the sweep. Idempotent.
    pub async fn settle_replaced(&self, orders: &[&Order]) -> Result<usize, SettlementError> {
        let Some(sale) = orders.first().map(|order| &order.sale) else { return Ok(0) };
        let users: Vec<_> = orders.iter().map(|order| (sale.as_str(), order.user.as_str())).collect();
        let options = LeaseOptions::lasting(super::adopt::LEASE);
        // Without Redis, no user can be protected.
        let Ok((guards, tokens)) = self.leases.take_in_scopes(users, options).await else { return Ok(0) };
        let mut reads = Vec::with_capacity(orders.len());
        for order in orders {
            if tokens.contains_key(&(sale.as_str(), order.user.as_str())) {
                reads.push(self.replacement(order));
            }
        }
        let settled = async {
            let settlements: Vec<_> = stream::iter(reads).buffered(READS).try_collect().await?;
            // The reading may have taken longer than the leases last, and so may the call.
            let until = Instant::now() + COMMIT_MARGIN;
            if settlements.is_empty() || !guards.iter().all(|guard| guard.is_valid_for(COMMIT_MARGIN)) {
                return Ok(0);
            }
            self.gate.settle_until(sale, &settlements, until).await?;
            Ok(settlements.len())
        };
        let settled = settled.await;
        release_all(guards).await;
        settled
    }

    async fn replacement(&self, order: &Order) -> Result<Settlement, SettlementError> {
        let outcome = Outcome::Replaced(self.store.live_order_of(order).await?.map(Box::new));
        Ok(Settlement { id: order.id, user: order.user.clone(), outcome })
    }
}
