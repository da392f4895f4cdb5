//! A rebuilt gate may not know an order whose row came later: only a message in a queue remembered the
//! order while the gate was rebuilt. Adopting makes the gate hold it.

use std::time::Duration;

use tokio::time::Instant;

use super::{SettlementError, Settler};
use crate::domain::{OrderId, SaleId, UserId};
use crate::gate::GateError;
use crate::lease::{COMMIT_MARGIN, Guard, LeaseOptions};

/// Attempts to take the user's lease while another process holds it, with a longer pause after each.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Longer than one row read and one script call take.
pub(super) const LEASE: Duration = Duration::from_secs(5);

impl Settler<'_> {
    /// Makes the gate hold an order whose row is live. The row is read under the user's lease, so nobody
    /// can end the order meanwhile. Returns `false` if there was nothing to do, or if another process
    /// holds the lease; the next comparison finds the order again. Idempotent.
    pub async fn adopt(&self, sale: &SaleId, user: &UserId, id: OrderId) -> Result<bool, SettlementError> {
        let Some(guard) = self.lease(sale, user).await else { return Ok(false) };
        let adopted = self.adopt_if_live(sale, id, &guard).await;
        let _ = guard.release().await;
        if matches!(adopted, Ok(true)) {
            metrics::counter!("doorbuster_gate_adopted_total").increment(1);
            tracing::warn!(order_id = %id, %sale, "the gate did not know a live order: adopted");
        }
        adopted
    }

    /// `None` if another process keeps the lease, or Redis is unavailable.
    async fn lease(&self, sale: &SaleId, user: &UserId) -> Option<Guard> {
        for tries in 1..=TRIES {
            let options = LeaseOptions::lasting(LEASE);
            let taken = self.leases.take(sale.as_str(), [user.as_str()], options).await;
            match taken.ok()?.guard {
                None if tries < TRIES => tokio::time::sleep(PAUSE * tries).await,
                guard => return guard,
            }
        }
        None
    }

    async fn adopt_if_live(
        &self,
        sale: &SaleId,
        id: OrderId,
        guard: &Guard,
    ) -> Result<bool, SettlementError> {
        let Some(row) = self.store.order(id).await?.filter(|row| row.status.is_live()) else {
            return Ok(false);
        };
        // The reading may have taken longer than the lease lasts, and so may the call.
        let until = Instant::now() + COMMIT_MARGIN;
        if !guard.is_valid_for(COMMIT_MARGIN) {
            return Ok(false);
        }
        match self.gate.adopt(&row.order, until).await {
            // The row records the number, so that a Redis that comes back without this write is
            // recognised as behind.
            Ok(Some(number)) => {
                self.store.finish_returns(sale, number, &[]).await?;
                Ok(true)
            }
            // Without a gate nothing could sell its unit twice.
            Ok(None) | Err(GateError::NotLoaded) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
