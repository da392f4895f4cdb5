//! Orders that nobody paid in time: in batches, under their users' leases, by the database's clock.
//! Late, where there are many or a server was away; never early.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::{Act, ActRequest, SaleId};
use crate::fault::fault;
use crate::gate::Gate;
use crate::lease::{COMMIT_MARGIN, Guard, LeaseError, LeaseOptions, Leases, MAX_NAMES_PER_CALL};
use crate::settlement::give_back;
use crate::store::{Change, Changed, OverdueOrder, Return, Store, StoreError};

/// The lease of a batch, and the longest that the watchdog may extend it.
const LEASE: Duration = Duration::from_secs(5);
const LONGEST_HOLD: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
enum ExpiryError {
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Expires what is overdue, as far as the users' leases are free. What was expired is committed, and the
/// gates have the units, or get them from the upkeep. Says how many it was; trouble with some orders is
/// not the others'.
pub async fn expire(gate: &Gate, store: &Store, leases: &Leases, overdue: &[OverdueOrder]) -> usize {
    let mut sales: BTreeMap<&SaleId, Vec<&OverdueOrder>> = BTreeMap::new();
    for order in overdue {
        sales.entry(&order.sale).or_default().push(order);
    }
    let mut expired = 0;
    for (sale, orders) in sales {
        let mut pending: Vec<&[&OverdueOrder]> = orders.chunks(MAX_NAMES_PER_CALL).collect();
        while let Some(orders) = pending.pop() {
            let owed = match expire_some(store, leases, sale, orders).await {
                Ok(owed) => owed,
                // One that the database refuses must not keep the others: it ends alone.
                Err(ExpiryError::Store(StoreError::Broken(_))) if orders.len() > 1 => {
                    let (first, second) = orders.split_at(orders.len() / 2);
                    pending.extend([second, first]);
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%sale, orders = orders.len(), %error, "orders wait to expire");
                    continue;
                }
            };
            expired += owed.len();
            metrics::counter!("orders_changed_total", "act" => "expire").increment(owed.len() as u64);
            if let Err(error) = give_back(gate, store, &owed).await {
                tracing::warn!(%sale, orders = owed.len(), %error, "units of expired orders wait for their gate");
            }
        }
    }
    expired
}

async fn expire_some(
    store: &Store,
    leases: &Leases,
    sale: &SaleId,
    orders: &[&OverdueOrder],
) -> Result<Vec<Return>, ExpiryError> {
    let (guard, changes) = claim(leases, sale, orders).await?;
    let Some(guard) = guard else { return Ok(Vec::new()) };
    fault!("expire.before", {
        guard.abandon();
        return Ok(Vec::new());
    });
    let changed = store.change(&changes, &|| guard.is_valid_for(COMMIT_MARGIN)).await;
    let _ = guard.release().await;
    let owed = |changed| match changed {
        Changed::Now(row) => Some(Return { id: row.order.id, sale: row.order.sale, user: row.order.user }),
        // Paid, cancelled or not due after all: whoever was quicker.
        _ => None,
    };
    Ok(changed?.into_iter().filter_map(owed).collect())
}

/// The leases of those users that nobody else acts for, and a change for each of their orders.
async fn claim(
    leases: &Leases,
    sale: &SaleId,
    orders: &[&OverdueOrder],
) -> Result<(Option<Guard>, Vec<Change>), LeaseError> {
    let mut users: Vec<&str> = orders.iter().map(|order| order.user.as_str()).collect();
    users.sort_unstable();
    users.dedup();
    let options = LeaseOptions::lasting(LEASE).max_hold(LONGEST_HOLD);
    let taken = leases.take(sale.as_str(), users.iter().copied(), options).await?;
    let Some(guard) = taken.guard else { return Ok((None, Vec::new())) };
    let held: Vec<&str> =
        users.iter().zip(&taken.held).filter(|(_, held)| **held).map(|(user, _)| *user).collect();
    let changes = orders
        .iter()
        .filter(|order| held.binary_search(&order.user.as_str()).is_ok())
        .map(|order| Change {
            id: order.id,
            act: Act::Expire,
            asked: ActRequest::by("deadline"),
            fence: guard.token(),
        })
        .collect();
    Ok((Some(guard), changes))
}
