//! An order that got its row after the gate was rebuilt without it, because nothing remembered it but a
//! message in a queue.

use std::time::Duration;

use super::SettlementError;
use crate::domain::{OrderId, SaleId, UserId};
use crate::gate::{Gate, GateError};
use crate::lease::{LeaseOptions, Leases};
use crate::store::Store;

/// How often somebody else who acts for the user is waited for, each time a little longer.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Longer than reading a row and a script call take.
const LEASE: Duration = Duration::from_secs(5);

/// Has the gate hold an order whose row is live. The row is read under the user's lease: nobody ends the
/// order meanwhile. `false` where there was nothing to do, or where somebody else acts for the user:
/// then it is for the next comparison.
pub async fn adopt(
    gate: &Gate,
    store: &Store,
    leases: &Leases,
    sale: &SaleId,
    user: &UserId,
    id: OrderId,
) -> Result<bool, SettlementError> {
    let mut tries = 1;
    let guard = loop {
        let taken = leases.take(sale.as_str(), [user.as_str()], LeaseOptions::lasting(LEASE)).await;
        match taken.map(|taken| taken.guard) {
            Ok(Some(guard)) => break guard,
            Ok(None) if tries < TRIES => tokio::time::sleep(PAUSE * tries).await,
            Ok(None) | Err(_) => return Ok(false),
        }
        tries += 1;
    };
    let adopted = async {
        let Some(row) = store.order(id).await?.filter(|row| row.status.is_live()) else {
            return Ok(false);
        };
        match gate.adopt(&row.order).await {
            // A Redis that comes back without this is behind.
            Ok(Some(number)) => {
                store.returned(sale, number, &[]).await?;
                Ok(true)
            }
            Ok(None) => Ok(false),
            // There is no gate that could sell its unit.
            Err(GateError::NotLoaded) => Ok(false),
            Err(error) => Err(SettlementError::from(error)),
        }
    };
    let adopted = adopted.await;
    let _ = guard.release().await;
    if matches!(adopted, Ok(true)) {
        metrics::counter!("gate_adopted_total").increment(1);
        tracing::warn!(order_id = %id, %sale, "the gate did not know a live order: adopted");
    }
    adopted
}
