//! Recording accepted orders: many in one transaction, because the stock row is hot and a COMMIT per order would make
//! it the bottleneck.
//!
//! Each transaction inserts the orders, adds to the users' units, then raises `sold`. The counter comes last, so that
//! its row is locked for the shortest time. Users and items are locked in a fixed order, so that workers do not
//! deadlock.

use std::collections::{BTreeMap, HashSet};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use sea_orm::{DatabaseTransaction, DbBackend, EntityTrait as _, QueryFilter as _, QuerySelect as _};
use uuid::Uuid;

use super::claim::{Claim, Recorded, Refusal};
use super::counters::raise_sold;
use super::new_rows::{FIRST_VERSION, confirmed_row};
use crate::domain::{Failure, Millis, OrderId, OrderStatus};
use crate::fault::fault;
use crate::store::entities::order;
use crate::store::error::StoreError;
use crate::store::halves::Halves;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::session::wait_briefly_for_locks;
use crate::store::transaction::MayCommit;
use crate::store::webhooks::Reached;

/// Orders that existed before, with their outcomes.
type Existing = BTreeMap<OrderId, (OrderStatus, Option<Failure>)>;

/// Sales that are recorded at the same time, each in its own transaction.
const APART: usize = 4;

impl Store {
    /// Records claims; the outcomes are in the order of the claims, and durable. After [`StoreError::Away`] the same
    /// claims may be repeated: orders that were recorded meanwhile get [`Recorded::Already`].
    ///
    /// A refused claim does not fail its batch: the claims of each sale are then recorded apart, at the same time, and
    /// those of its sale are halved until it stands alone. Nor does a row that another session holds: the claims of the
    /// sale with that row get [`Recorded::Locked`].
    ///
    /// `may_commit` is called before each COMMIT, because the caller's leases may have expired since the transaction
    /// began. If it returns `false`, the answer is [`StoreError::LeaseEnded`].
    pub async fn record(
        &self,
        claims: &[Claim],
        may_commit: MayCommit<'_>,
    ) -> Result<Vec<Recorded>, StoreError> {
        // A lock wait cannot be short there, so locks are found before anything waits for them.
        if self.db.get_database_backend() == DbBackend::MySql && !is_of_one_sale(claims) {
            let stalled = self.stalled_items(claims).await?;
            if !stalled.is_empty() {
                let is_locked = |claim: &Claim| stalled.contains(&(&claim.order.sale, &claim.order.sku));
                return self.each_sale(claims, &is_locked, may_commit).await;
            }
        }
        match self.record_together(claims, may_commit).await {
            Err(StoreError::Locked(why)) => {
                tracing::debug!(why, orders = claims.len(), "a row is locked by another session");
                self.record_apart(claims, may_commit).await
            }
            recorded => recorded,
        }
    }

    /// As [`Store::record`] after a lock. Sales whose items are locked now are left out: waiting for them once more would
    /// take as long as before.
    async fn record_apart(
        &self,
        claims: &[Claim],
        may_commit: MayCommit<'_>,
    ) -> Result<Vec<Recorded>, StoreError> {
        if is_of_one_sale(claims) {
            return Ok(vec![Recorded::Locked; claims.len()]);
        }
        let locked = self.locked_items(claims).await?;
        let is_locked = |claim: &Claim| locked.contains_key(&(&claim.order.sale, &claim.order.sku));
        self.each_sale(claims, &is_locked, may_commit).await
    }

    /// The claims of each sale in transactions of their own, some sales at the same time. Those of a sale with a claim that
    /// `is_locked` are not tried.
    async fn each_sale(
        &self,
        claims: &[Claim],
        is_locked: &(dyn Fn(&Claim) -> bool + Sync),
        may_commit: MayCommit<'_>,
    ) -> Result<Vec<Recorded>, StoreError> {
        let mut apart = Vec::new();
        for claims in claims.chunk_by(|one, next| one.order.sale == next.order.sale) {
            apart.push(async move {
                if claims.iter().any(is_locked) {
                    return Ok(vec![Recorded::Locked; claims.len()]);
                }
                match self.record_one_sale(claims, may_commit).await {
                    Err(StoreError::Locked(_)) => Ok(vec![Recorded::Locked; claims.len()]),
                    recorded => recorded,
                }
            });
        }
        stream::iter(apart).buffered(APART).try_concat().await
    }

    /// All claims in one transaction, and if that is refused, the claims of each sale apart.
    async fn record_together(
        &self,
        claims: &[Claim],
        may_commit: MayCommit<'_>,
    ) -> Result<Vec<Recorded>, StoreError> {
        if is_of_one_sale(claims) {
            return self.record_one_sale(claims, may_commit).await;
        }
        match self.within(self.try_batch(claims, may_commit)).await? {
            Ok(recorded) => Ok(recorded),
            Err(_) => self.each_sale(claims, &|_| false, may_commit).await,
        }
    }

    /// Claims of one sale, halved until what is refused stands alone.
    async fn record_one_sale(
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
            if new.windows(2).any(|pair| pair[0].order.sale != pair[1].order.sale) {
                wait_briefly_for_locks(&transaction).await?;
            }
            self.announce(&transaction, new.iter().map(|claim| confirmed(claim, deadlines.now))).await?;
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

/// The first state of a row that a claim has become.
fn confirmed(claim: &Claim, at: Millis) -> Reached<'_> {
    let order = &claim.order;
    let (sale, status) = (order.sale.as_str(), OrderStatus::Confirmed);
    Reached { order: order.id, version: FIRST_VERSION, sale, status, at }
}

fn is_of_one_sale(claims: &[Claim]) -> bool {
    claims.windows(2).all(|pair| pair[0].order.sale == pair[1].order.sale)
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
