//! Sales that are set aside, because another session holds a row of theirs, and the deliveries that wait for them. Other
//! sales go on without them. A lane tries from time to time whether a sale can go on.

use std::collections::HashMap;
use std::ops::Add as _;
use std::time::Duration;

use tokio::time::Instant;

use super::pending::{PendingDelivery, lent};
use crate::domain::SaleId;
use crate::link::Backoff;
use crate::queue::Amount;
use crate::telemetry::SaleGauges;

/// The gauge of a sale that is set aside.
const STALLED: &str = "doorbuster_worker_sale_stalled";

/// Longer than a lane needs to try a sale.
const TRIED_WITHIN: Duration = Duration::from_secs(60);

struct Stall {
    retry_at: Instant,
    backoff: Backoff,
    /// What a lane has taken to try whether the sale can go on.
    tried: Amount,
}

/// The sales that are set aside.
pub(super) struct Aside {
    sales: HashMap<SaleId, Stall>,
    /// With orders of these sales, and no others that could be persisted now.
    deliveries: Vec<PendingDelivery>,
    gauges: SaleGauges,
}

impl Aside {
    /// None yet.
    pub(super) fn new(gauges: SaleGauges) -> Self {
        Self { sales: HashMap::new(), deliveries: Vec::new(), gauges }
    }

    /// What waits, and what lanes have taken of it for a try. The rest of the work goes on without it.
    pub(super) fn held(&self) -> Amount {
        self.sales.values().map(|stall| stall.tried).fold(lent(&self.deliveries), Amount::add)
    }

    /// The deliveries that wait.
    pub(super) fn deliveries(&self) -> &[PendingDelivery] {
        &self.deliveries
    }

    /// Keeps the orders of these sales out of a batch, and returns what is left of it. Orders that were set aside before and
    /// whose sale goes on by now are part of that.
    pub(super) fn sift(&mut self, batch: Vec<PendingDelivery>) -> Vec<PendingDelivery> {
        let mut left = Vec::with_capacity(batch.len());
        for mut pending in batch {
            pending.set_aside(|sale| self.sales.contains_key(sale));
            if pending.orders.is_empty() && !pending.aside.is_empty() {
                self.deliveries.push(pending);
            } else {
                left.push(pending);
            }
        }
        left
    }

    /// Takes over what a lane has left, and returns what it may retry at once. `tried` is the sale for which the lane was
    /// started, if any: it goes on unless one of its rows was still locked.
    pub(super) fn take_over(
        &mut self,
        mut left: Vec<PendingDelivery>,
        tried: Option<&SaleId>,
    ) -> Vec<PendingDelivery> {
        if let Some(stall) = tried.and_then(|sale| self.sales.get_mut(sale)) {
            stall.tried = Amount::default();
        }
        let mut locked: Vec<SaleId> = Vec::new();
        for pending in &mut left {
            locked.extend(pending.locked.iter().map(|order| order.sale.clone()));
            pending.aside.append(&mut pending.locked);
        }
        locked.sort_unstable();
        locked.dedup();
        if let Some(sale) = tried.filter(|sale| !locked.contains(sale)) {
            tracing::info!(%sale, "sale goes on");
            self.sales.remove(sale);
            self.gauges.show_one(STALLED, sale, 0.0);
            left.extend(self.take(usize::MAX, sale));
        }
        for sale in &locked {
            self.add(sale);
        }
        // A lane may return orders that were set aside when it began, of a sale that goes on by now.
        self.sift(left)
    }

    /// A sale that should be tried now, with at most about `most` of its orders.
    pub(super) fn take_due(&mut self, most: usize) -> Option<(SaleId, Vec<PendingDelivery>)> {
        let now = Instant::now();
        self.next_retry().filter(|at| *at <= now)?;
        let (sale, stall) = self.sales.iter_mut().min_by_key(|(_, stall)| stall.retry_at)?;
        stall.retry_at = now + TRIED_WITHIN;
        let sale = sale.clone();
        let batch = self.take(most, &sale);
        let tried = lent(&batch);
        if let Some(stall) = self.sales.get_mut(&sale) {
            stall.tried = tried;
        }
        Some((sale, batch))
    }

    /// When the next sale should be tried.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.sales.values().map(|stall| stall.retry_at).min()
    }

    /// Forgets everything: the deliveries are given back.
    pub(super) fn clear(&mut self) {
        self.deliveries.clear();
        for (sale, _) in self.sales.drain() {
            self.gauges.show_one(STALLED, &sale, 0.0);
        }
    }

    fn add(&mut self, sale: &SaleId) {
        let stall = self.sales.entry(sale.clone()).or_insert_with(|| {
            tracing::warn!(%sale, "sale set aside: another session holds a row of it");
            self.gauges.show_one(STALLED, sale, 1.0);
            Stall { retry_at: Instant::now(), backoff: Backoff::default(), tried: Amount::default() }
        });
        // While a lane tries the sale, another one adds nothing to what is known.
        if stall.tried.messages == 0 {
            stall.retry_at = Instant::now() + stall.backoff.delay();
        }
    }

    /// Takes deliveries with orders of this sale, about `most` orders in all. The others wait on.
    fn take(&mut self, most: usize, sale: &SaleId) -> Vec<PendingDelivery> {
        let (mut taken, mut room) = (Vec::new(), most);
        for mut pending in std::mem::take(&mut self.deliveries) {
            pending.take_back(room, sale);
            room = room.saturating_sub(pending.orders.len());
            if pending.orders.is_empty() {
                self.deliveries.push(pending);
            } else {
                taken.push(pending);
            }
        }
        taken
    }
}
