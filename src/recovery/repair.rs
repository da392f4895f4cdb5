//! Mending what differs. Each step is conditional on what it mends being there still, so it may be
//! repeated, and a sale may go on meanwhile.

use std::time::Duration;

use super::compare::{Comparison, Difference, DifferenceKind, compare};
use crate::audit::{AuditError, audit};
use crate::domain::{ActRequest, OrderStatus, SaleId};
use crate::gate::{Adjusted, Gate, GateError};
use crate::lease::{COMMIT_MARGIN, LeaseError, LeaseOptions, Leases};
use crate::queue::{PublishError, Publisher};
use crate::settlement::{SettlementError, Settler, give_back, settle_order};
use crate::store::{Claim, Return, Store, StoreError};

#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    #[error("another process is acting for its user; run it again")]
    Busy,
    #[error("the gate does not know the sale, or is frozen: use `doorbuster rebuild`")]
    Rebuild,
    #[error(transparent)]
    Gate(GateError),
    #[error("the database: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error(transparent)]
    Audit(#[from] AuditError),
}

impl From<GateError> for RepairError {
    fn from(error: GateError) -> Self {
        match error {
            GateError::Frozen | GateError::NotLoaded => Self::Rebuild,
            other => Self::Gate(other),
        }
    }
}

impl From<SettlementError> for RepairError {
    fn from(error: SettlementError) -> Self {
        match error {
            SettlementError::Gate(error) => error.into(),
            SettlementError::Store(error) => error.into(),
        }
    }
}

/// What was mended, in words.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Repaired {
    pub done: Vec<String>,
    pub left: Vec<String>,
}

/// How long to wait for another holder of the user's lease.
const WAIT: Duration = Duration::from_secs(5);

/// Cheap to clone.
#[derive(Clone)]
pub struct Repair {
    pub gate: Gate,
    pub store: Store,
    pub leases: Leases,
    pub publisher: Publisher,
}

impl Repair {
    /// Mends what a comparison has found, then how many units are left, where the books still do not
    /// balance. Says of each what became of it.
    pub async fn apply(&self, comparison: &Comparison, asked: &ActRequest) -> Repaired {
        let mut mended = Repaired::default();
        for difference in &comparison.differences {
            let (id, why) = (difference.order_id, difference.why.as_str());
            if !difference.why.is_repairable() {
                mended.left.push(format!("{id} {why}: {}", difference.why.remedy()));
                continue;
            }
            match self.one(difference, asked).await {
                Ok(done) => mended.done.push(format!("{id} {why}: {done}")),
                Err(error) => mended.left.push(format!("{id} {why}: {error}")),
            }
        }
        if let Err(error) = self.adjust_what_no_order_explains(&comparison.books.sale_id, &mut mended).await {
            mended.left.push(error.to_string());
        }
        mended
    }

    async fn one(&self, difference: &Difference, asked: &ActRequest) -> Result<&'static str, RepairError> {
        let order = &difference.order;
        match difference.why {
            DifferenceKind::Lost | DifferenceKind::Waiting => {
                let up = tokio::time::timeout(WAIT, self.publisher.wait_until_up());
                up.await.map_err(|_| PublishError::Away)?;
                self.publisher.publish(std::slice::from_ref(order)).await?;
                Ok("published again")
            }
            DifferenceKind::Leaked => self.end_leaked(difference, asked).await,
            DifferenceKind::Unsettled => {
                let Some(row) = self.store.order(order.id).await? else {
                    return Ok("its row is gone");
                };
                settle_order(&self.gate, &self.store, &row.order, row.failure).await?;
                Ok("settled in the gate")
            }
            DifferenceKind::Unreturned => {
                let Some(row) = self.store.order(order.id).await? else {
                    return Ok("its row is gone");
                };
                match row.failure {
                    // Frees its user, as settling it would have done when it failed.
                    Some(_) => _ = settle_order(&self.gate, &self.store, order, row.failure).await?,
                    None => self.give_back(difference).await?,
                }
                Ok("its units are on sale again")
            }
            DifferenceKind::UnknownToGate => {
                let Self { gate, store, leases, .. } = self;
                let settler = Settler { gate, store, leases };
                match settler.adopt(&order.sale, &order.user, order.id).await? {
                    true => Ok("the gate holds it"),
                    false => Err(RepairError::Busy),
                }
            }
            DifferenceKind::Duplicate | DifferenceKind::Oversold | DifferenceKind::DatabaseBehind => {
                Ok("left")
            }
        }
    }

    /// First a row in a final state, so that a late message meets it; then the units.
    async fn end_leaked(
        &self,
        difference: &Difference,
        asked: &ActRequest,
    ) -> Result<&'static str, RepairError> {
        let order = &difference.order;
        let options = LeaseOptions::lasting(WAIT);
        let taken = self.leases.take(order.sale.as_str(), [order.user.as_str()], options).await?;
        let guard = taken.guard.ok_or(RepairError::Busy)?;
        let may_commit = || guard.is_valid_for(COMMIT_MARGIN);
        let claim = Claim { order: order.clone(), fence: guard.token() };
        let ended = self.store.end_unrecorded(&claim, OrderStatus::Expired, asked, &may_commit).await;
        let _ = guard.release().await;
        if ended?.is_none() {
            return Ok("it has a row by now");
        }
        self.give_back(difference).await?;
        Ok("recorded as expired; its units are on sale again")
    }

    async fn give_back(&self, difference: &Difference) -> Result<(), RepairError> {
        let order = &difference.order;
        let owed = Return { id: order.id, sale: order.sale.clone(), user: order.user.clone() };
        Ok(give_back(&self.gate, &self.store, &[owed]).await?)
    }

    /// Not while any order differs, however young: its own mending would count its units once more.
    async fn adjust_what_no_order_explains(
        &self,
        sale: &SaleId,
        mended: &mut Repaired,
    ) -> Result<(), RepairError> {
        if audit(&self.gate, &self.store, sale).await?.balances() {
            return Ok(());
        }
        let now = compare(&self.gate, &self.store, None, sale, Duration::ZERO).await?;
        let explains = |why| {
            !matches!(why, DifferenceKind::Duplicate | DifferenceKind::Oversold | DifferenceKind::Waiting)
        };
        if now.differences.iter().any(|differs| explains(differs.why)) {
            mended.left.push("orders still differ: repair them before the units left".into());
            return Ok(());
        }
        self.adjust(sale, mended).await
    }

    /// What no order explains: the gate has too many units, or too few.
    async fn adjust(&self, sale: &SaleId, mended: &mut Repaired) -> Result<(), RepairError> {
        let books = audit(&self.gate, &self.store, sale).await?;
        if books.balances() {
            return Ok(());
        }
        if books.needs_rebuild() {
            return Err(RepairError::Rebuild);
        }
        let Some(mut at) = books.number.filter(|_| !books.moved) else {
            mended
                .left
                .push("the sale changed meanwhile, or a change of stock is half way: run it again".into());
            return Ok(());
        };
        for item in books.items.iter().filter(|item| item.missing() != 0) {
            let missing = item.missing();
            match self.gate.adjust(sale, &item.sku, missing, at).await? {
                Adjusted::Done { left, number } => {
                    // A Redis that comes back without this is behind.
                    self.store.finish_returns(sale, number, &[]).await?;
                    at = number;
                    tracing::info!(%sale, sku = %item.sku, units = missing, left, "units left were put right");
                    mended.done.push(format!("{}: {missing:+} units, {left} left now", item.sku));
                }
                Adjusted::Stale => {
                    mended.left.push(format!("{}: the sale changed meanwhile; run it again", item.sku));
                }
            }
        }
        Ok(())
    }
}
