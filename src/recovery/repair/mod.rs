//! Repairs the differences that a comparison found. Each step acts only if its difference is still there, so a repair
//! may be repeated, and the sale may stay open meanwhile.

mod outcome;
mod units;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::compare::{Comparison, Difference, DifferenceKind};
use crate::domain::{ActRequest, Failure, Order, OrderStatus};
use crate::gate::Gate;
use crate::lease::{COMMIT_MARGIN, LeaseOptions, Leases};
use crate::queue::{PublishError, Publisher};
use crate::settlement::{Settler, give_back};
use crate::store::{Claim, Return, Store};

pub use outcome::{RepairError, Repaired};

/// How long a repair waits for the broker, and how long it holds a user's lease.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Repairs differences. Cheap to clone.
#[derive(Clone)]
pub struct Repair {
    /// The gate.
    pub gate: Gate,
    /// The database.
    pub store: Store,
    /// Leases of users, shared with the workers.
    pub leases: Leases,
    /// Publishes lost orders again.
    pub publisher: Publisher,
}

impl Repair {
    /// Repairs each difference that `comparison` lists, then the units left in the gate if the books still do not
    /// balance. A failure on one difference does not stop the others; the result lists every outcome. Cancelling `stop`
    /// leaves the rest after the current one. `request` is recorded with each order that ends. May be repeated.
    pub async fn apply(
        &self,
        comparison: &Comparison,
        request: &ActRequest,
        stop: &CancellationToken,
    ) -> Repaired {
        let mut repaired = Repaired::default();
        for (nth, difference) in comparison.differences.iter().enumerate() {
            if stop.is_cancelled() {
                let left = comparison.differences.len() - nth;
                repaired.left.push(format!("stopped before the last {left}: audit again"));
                return repaired;
            }
            let (id, why) = (difference.order_id, difference.why.as_str());
            if !difference.why.is_repairable() {
                repaired.left.push(format!("{id} {why}: {}", difference.why.remedy()));
                continue;
            }
            match self.one(difference, request).await {
                Ok(done) => repaired.done.push(format!("{id} {why}: {done}")),
                Err(error) => repaired.left.push(format!("{id} {why}: {error}")),
            }
        }
        if stop.is_cancelled() {
            repaired.left.push("stopped before the units left in the gate: audit again".into());
            return repaired;
        }
        let sale = &comparison.books.sale_id;
        if let Err(error) = units::correct(&self.gate, &self.store, sale, &mut repaired).await {
            repaired.left.push(error.to_string());
        }
        repaired
    }

    async fn one(&self, difference: &Difference, request: &ActRequest) -> Result<&'static str, RepairError> {
        let order = &difference.order;
        let line = self.store.line().await?;
        match difference.why {
            DifferenceKind::Lost | DifferenceKind::Waiting => {
                let up = tokio::time::timeout(TIMEOUT, self.publisher.wait_until_up());
                up.await.map_err(|_| PublishError::Away)?;
                self.publisher.publish(std::slice::from_ref(order)).await?;
                Ok("published again")
            }
            DifferenceKind::Leaked => self.end_leaked(order, line, request).await,
            DifferenceKind::Unsettled => {
                let Some(row) = self.store.order(order.id).await? else { return Ok("its row is gone") };
                self.settle(&row.order, row.failure).await?;
                Ok("settled in the gate")
            }
            DifferenceKind::Unreturned => {
                let Some(row) = self.store.order(order.id).await? else { return Ok("its row is gone") };
                match row.failure {
                    // Settling frees the user, just as it would have done when the order failed.
                    Some(_) => self.settle(order, row.failure).await?,
                    None => self.return_units(order, line).await?,
                }
                Ok("its units are on sale again")
            }
            DifferenceKind::UnknownToGate => {
                match self.settler().adopt(&order.sale, &order.user, order.id).await? {
                    true => Ok("the gate holds it"),
                    false => Err(RepairError::Busy),
                }
            }
            DifferenceKind::Unproven
            | DifferenceKind::Duplicate
            | DifferenceKind::Oversold
            | DifferenceKind::DatabaseBehind => Ok("left"),
        }
    }

    fn settler(&self) -> Settler<'_> {
        Settler { gate: &self.gate, store: &self.store, leases: &self.leases }
    }

    async fn settle(&self, order: &Order, failure: Option<Failure>) -> Result<(), RepairError> {
        match self.settler().settle_order(order, failure).await? {
            true => Ok(()),
            false => Err(RepairError::Busy),
        }
    }

    /// The row in a final state comes first, so that a late message finds it; then the units go back.
    async fn end_leaked(
        &self,
        order: &Order,
        line: i64,
        request: &ActRequest,
    ) -> Result<&'static str, RepairError> {
        let options = LeaseOptions::lasting(TIMEOUT);
        let taken = self.leases.take(order.sale.as_str(), [order.user.as_str()], options).await?;
        let guard = taken.guard.ok_or(RepairError::Busy)?;
        let may_commit = || guard.is_valid_for(COMMIT_MARGIN);
        let claim = Claim { order: order.clone(), fence: guard.token() };
        let ended = self.store.end_unrecorded(&claim, OrderStatus::Expired, request, &may_commit).await;
        let _ = guard.release().await;
        if ended?.is_none() {
            return Ok("it has a row by now");
        }
        self.return_units(order, line).await?;
        Ok("recorded as expired; its units are on sale again")
    }

    /// `line` is that of the database before the order's row was read or written.
    async fn return_units(&self, order: &Order, line: i64) -> Result<(), RepairError> {
        let owed = Return { id: order.id, sale: order.sale.clone(), user: order.user.clone(), line };
        Ok(give_back(&self.gate, &self.store, &[owed]).await?)
    }
}
