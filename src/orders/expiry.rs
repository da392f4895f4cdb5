//! Expires orders that were not paid in time: in batches, under their users' leases, by the database's clock. An
//! order may expire late, if there are many or a server was unavailable, but never early.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::{Act, ActRequest, SaleId};
use crate::fault::fault;
use crate::gate::Gate;
use crate::lease::{COMMIT_MARGIN, Guard, LeaseError, LeaseOptions, Leases, MAX_NAMES_PER_CALL};
use crate::settlement::{BeforeEach, give_back};
use crate::store::{Change, Changed, Halves, OverdueOrder, Return, Store, StoreError};

/// How long the leases of a batch last.
const LEASE: Duration = Duration::from_secs(5);
/// How long the watchdog renews them at most.
const MAX_HOLD: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
enum ExpiryError {
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The servers that expiry works with.
pub struct Expiry<'a> {
    /// Takes the units back.
    pub gate: &'a Gate,
    /// Has the orders.
    pub store: &'a Store,
    /// Protects users while their orders expire.
    pub leases: &'a Leases,
}

impl Expiry<'_> {
    /// Expires the overdue orders whose users' leases are free, and returns how many. On return each change is committed,
    /// and the gate has the units or maintenance returns them later. An error on some orders is logged and does not stop
    /// those of other sales; their sale is added to `unavailable`. Calls `before_each` before each batch, since each may
    /// have to wait for a lock. May be repeated.
    pub async fn expire(
        &self,
        overdue: &[OverdueOrder],
        unavailable: &mut Vec<SaleId>,
        before_each: BeforeEach<'_>,
    ) -> usize {
        let mut sales: BTreeMap<&SaleId, Vec<&OverdueOrder>> = BTreeMap::new();
        for order in overdue {
            sales.entry(&order.sale).or_default().push(order);
        }
        let mut expired = 0;
        for (sale, orders) in sales {
            for batch in orders.chunks(MAX_NAMES_PER_CALL) {
                let (some, goes_on) = self.expire_batch(sale, batch, before_each).await;
                expired += some;
                if !goes_on {
                    unavailable.push(sale.clone());
                    break;
                }
            }
        }
        expired
    }

    /// Expires one batch. If the database refuses one of its orders, halving the batch lets the others expire. Returns how
    /// many expired, and whether there is a use in going on with the sale.
    async fn expire_batch(
        &self,
        sale: &SaleId,
        batch: &[&OverdueOrder],
        before_each: BeforeEach<'_>,
    ) -> (usize, bool) {
        let (mut expired, mut refused, mut failed) = (0, false, false);
        let mut pending = Halves::of(batch);
        while let Some(orders) = pending.next_part() {
            before_each().await;
            let owed = match self.expire_some(sale, orders).await {
                Ok(owed) => owed,
                Err(ExpiryError::Store(StoreError::Broken(_))) if orders.len() > 1 => {
                    pending.split(orders);
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%sale, orders = orders.len(), %error, "overdue orders are not expired yet");
                    match error {
                        ExpiryError::Store(StoreError::Broken(_)) => refused = true,
                        _ => failed = true,
                    }
                    continue;
                }
            };
            expired += owed.len();
            metrics::counter!("doorbuster_orders_changed_total", "act" => "expire")
                .increment(owed.len() as u64);
            if let Err(error) = give_back(self.gate, self.store, &owed).await {
                tracing::warn!(%sale, orders = owed.len(), %error, "the units of expired orders are not back in the gate yet");
            }
        }
        // One that the database refuses stands beside those that it takes.
        (expired, !failed && (expired > 0 || !refused))
    }

    async fn expire_some(&self, sale: &SaleId, orders: &[&OverdueOrder]) -> Result<Vec<Return>, ExpiryError> {
        let (guard, changes) = claim(self.leases, sale, orders).await?;
        let Some(guard) = guard else { return Ok(Vec::new()) };
        fault!("expire.before", {
            guard.abandon();
            return Ok(Vec::new());
        });
        let line = self.store.line().await?;
        let changed = self.store.change(&changes, &|| guard.is_valid_for(COMMIT_MARGIN)).await;
        let _ = guard.release().await;
        let owed = |changed| match changed {
            Changed::Now(row) => {
                Some(Return { id: row.order.id, sale: row.order.sale, user: row.order.user, line })
            }
            // A concurrent payment or cancellation came first, or the deadline has not passed.
            _ => None,
        };
        Ok(changed?.into_iter().filter_map(owed).collect())
    }
}

/// Takes the users' leases that are free, and prepares a change for each of their orders.
async fn claim(
    leases: &Leases,
    sale: &SaleId,
    orders: &[&OverdueOrder],
) -> Result<(Option<Guard>, Vec<Change>), LeaseError> {
    let mut users: Vec<&str> = orders.iter().map(|order| order.user.as_str()).collect();
    users.sort_unstable();
    users.dedup();
    let options = LeaseOptions::lasting(LEASE).max_hold(MAX_HOLD);
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
