//! Recording accepted orders: many in one transaction, because the stock row is hot and a COMMIT per order would make
//! it the bottleneck.
//!
//! Each transaction inserts the orders, adds to the users' units, then raises `sold`. The counter comes last, so that
//! its row is locked for the shortest time. Users and items are locked in a fixed order, so that workers do not
//! deadlock.

use std::collections::{BTreeMap, HashSet};

use sea_orm::{DatabaseTransaction, EntityTrait as _, QueryFilter as _, QuerySelect as _};
use uuid::Uuid;

use super::claim::{Claim, Recorded, Refusal};
use super::counters::raise_sold;
use super::new_rows::confirmed_row;
use crate::domain::{Failure, OrderId, OrderStatus};
use crate::fault::fault;
use crate::store::entities::order;
use crate::store::error::StoreError;
use crate::store::halves::Halves;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::transaction::MayCommit;

/// Orders that existed before, with their outcomes.
type Existing = BTreeMap<OrderId, (OrderStatus, Option<Failure>)>;

impl Store {
    /// Records claims; the outcomes are in the order of the claims, and durable. After [`StoreError::Away`] the same
    /// claims may be repeated: orders that were recorded meanwhile get [`Recorded::Already`].
    ///
    /// A refused claim does not fail its batch: the batch is halved until the claim stands alone.
    ///
    /// `may_commit` is called before each COMMIT, because the caller's leases may have expired since the transaction
    /// began. If it returns `false`, the answer is [`StoreError::LeaseEnded`].
    pub async fn record(
        &self,
        claims: &[Claim],
        may_commit: MayCommit<'_>,
    ) -> Result<Vec<Recorded>, StoreError> {
        let mut answers = Vec::with_capacity(claims.len());
        let mut pending = Halves::of(claims);
        while let Some(claims) = pending.next_part() {
            match self.within(self.try_batch(claims, may_commit)).await? {
                Ok(recorded) => answers.extend(recorded),
                Err(refusal) if claims.len() == 1 => {
                    answers.push(self.refuse(&claims[0], refusal, may_commit).await?);
                }
                Err(_) => pending.split(claims),
            }
        }
        Ok(answers)
    }

    async fn try_batch(
        &self,
        claims: &[Claim],
        may_commit: MayCommit<'_>,
    ) -> Result<Result<Vec<Recorded>, Refusal>, StoreError> {
        if claims.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        fault!("begin.before", return Err(StoreError::Away("injected".into())));
        let transaction = self.begin().await?;
        fault!("begin.after", return Err(StoreError::Away("injected".into())));
        let attempt = Uuid::new_v4();
        fault!("insert.before", return Err(StoreError::Away("injected".into())));
        let deadlines = self.deadlines(&transaction, claims).await?;
        let rows =
            claims.iter().map(|claim| confirmed_row(claim, attempt, deadlines.now, deadlines.pay_by(claim)));
        let written = self.insert_orders(&transaction, rows.collect(), attempt).await?;
        fault!("insert.after", return Err(StoreError::Away("injected".into())));
        // The other rows existed before, or conflict with another order.
        let others = claims.iter().map(|claim| claim.order.id).filter(|id| !written.contains(id));
        let existing = read_back(&transaction, others.collect()).await?;
        let Some((answers, new)) = outcomes(claims, written, &existing) else {
            return roll_back(transaction, Refusal::Conflict).await;
        };
        if !new.is_empty() {
            if let Some(refusal) = self.add_units(&transaction, &new, &deadlines.limits).await? {
                return roll_back(transaction, refusal).await;
            }
            if let Some(refusal) = raise_sold(&transaction, &new).await? {
                return roll_back(transaction, refusal).await;
            }
        }
        fault!("commit.before", return Err(StoreError::Away("injected".into())));
        let sales: Vec<&str> = new.iter().map(|claim| claim.order.sale.as_str()).collect();
        self.commit_if(may_commit, transaction, &sales).await?;
        fault!("commit.after", return Err(StoreError::Away("injected".into())));
        Ok(Ok(answers))
    }
}

/// The outcome of each claim, and the claims that are new. `None` for a claim that was neither written nor known.
fn outcomes<'a>(
    claims: &'a [Claim],
    mut written: HashSet<OrderId>,
    existing: &Existing,
) -> Option<(Vec<Recorded>, Vec<&'a Claim>)> {
    let mut new = Vec::new();
    let mut answers = Vec::with_capacity(claims.len());
    for claim in claims {
        // The same order twice in one batch is one new order.
        if written.remove(&claim.order.id) {
            new.push(claim);
            answers.push(Recorded::Confirmed);
        } else if let Some((status, failure)) = existing.get(&claim.order.id) {
            answers.push(Recorded::Already(*status, *failure));
        } else if new.iter().any(|new: &&Claim| new.order.id == claim.order.id) {
            answers.push(Recorded::Already(OrderStatus::Confirmed, None));
        } else {
            return None;
        }
    }
    Some((answers, new))
}

async fn roll_back<T>(
    transaction: DatabaseTransaction,
    refusal: Refusal,
) -> Result<Result<T, Refusal>, StoreError> {
    transaction.rollback().await?;
    Ok(Err(refusal))
}

async fn read_back(transaction: &DatabaseTransaction, ids: Vec<OrderId>) -> Result<Existing, StoreError> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids = ids.into_iter().map(|id| id.uuid());
    let rows: Vec<(Uuid, String, Option<String>)> = order::Entity::find()
        .select_only()
        .columns([order::Column::Id, order::Column::Status, order::Column::Failure])
        .filter(is_one_of(transaction, order::Column::Id, ids))
        .into_tuple()
        .all(transaction)
        .await?;
    rows.into_iter()
        .map(|(id, status, failure)| {
            let status = status.parse().map_err(|_| StoreError::unreadable("a status", &status))?;
            let failure = failure
                .map(|text| text.parse().map_err(|_| StoreError::unreadable("a failure", &text)))
                .transpose()?;
            Ok((id.into(), (status, failure)))
        })
        .collect()
}
