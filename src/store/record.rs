//! Persisting accepted orders: many in one transaction, because the stock row is hot and one
//! COMMIT for each would make it the bottleneck.
//!
//! Inside the transaction: insert the orders, add to the users' units, raise `sold`. The counter
//! comes last, so that its row is locked for the shortest time; users and items in a fixed order,
//! so that two workers cannot wait for each other in a circle.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ColumnTrait as _, DatabaseTransaction, DbBackend, EntityTrait as _, IsolationLevel, QueryFilter as _,
    QuerySelect as _, SqliteTransactionMode, TransactionOptions, TransactionTrait as _,
};
use uuid::Uuid;

use super::counted::raise_sold;
use super::entities::{order, sale};
use super::many::{Meets, insert_many, is_one_of};
use super::new_rows::confirmed_row;
use super::{Store, StoreError};
use crate::domain::{Failure, Millis, Order, OrderId, OrderStatus};
use crate::fault::fault;

/// An accepted order, with the fencing token of the lease under which it is persisted.
#[derive(Debug, Clone)]
pub struct Claim {
    pub order: Order,
    pub fence: i64,
}

/// What became of a claim. All but `Stale` are committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// The row was inserted now, and its units counted.
    Confirmed,
    /// The row was there: the message came twice.
    Already(OrderStatus, Option<Failure>),
    /// The last line refused it, as a row in state `failed`. For [`Failure::OverLimit`] with the
    /// order that won.
    Failed(Failure, Option<Box<Order>>),
    /// A holder with a higher token has written for this user: take the lease again.
    Stale,
}

pub(super) struct Deadlines {
    pub(super) now: Millis,
    pay_within: BTreeMap<String, Duration>,
    /// Units per user now.
    pub(super) limits: BTreeMap<String, i64>,
}

impl Deadlines {
    pub(super) fn pay_by(&self, claim: &Claim) -> Option<Millis> {
        self.pay_within.get(claim.order.sale.as_str()).map(|pay_within| self.now.plus(*pay_within))
    }
}

/// What kept a batch from being committed.
pub(super) enum Refusal {
    Stock(Failure),
    Limit,
    Fence,
    /// The row conflicts with another order's, by key or by number.
    Conflict,
}

impl Store {
    /// Persists claims; the answers are in the order of the claims. What [`StoreError::Away`] left
    /// undone may be repeated with the same claims.
    ///
    /// A refused claim does not take the batch along: the batch is halved until it stands alone.
    ///
    /// `may_commit` is asked before each COMMIT: whoever had the right to write when the transaction
    /// began may have lost it. `false` is [`StoreError::LeaseEnded`].
    pub async fn record(
        &self,
        claims: &[Claim],
        may_commit: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Recorded>, StoreError> {
        let mut answers = Vec::with_capacity(claims.len());
        let mut pending = vec![claims];
        while let Some(claims) = pending.pop() {
            match self.within(self.try_batch(claims, may_commit)).await? {
                Ok(recorded) => answers.extend(recorded),
                Err(refusal) if claims.len() == 1 => {
                    answers.push(self.refuse(&claims[0], refusal, may_commit).await?);
                }
                Err(_) => {
                    let (first, second) = claims.split_at(claims.len() / 2);
                    pending.extend([second, first]);
                }
            }
        }
        Ok(answers)
    }

    pub(super) async fn begin(&self) -> Result<DatabaseTransaction, StoreError> {
        let options = TransactionOptions {
            // MySQL's default would lock gaps, and workers would deadlock on neighbours.
            isolation_level: (self.db.get_database_backend() == DbBackend::MySql)
                .then_some(IsolationLevel::ReadCommitted),
            access_mode: None,
            // SQLite has one writer: better to wait for it at the start than to fail half way.
            sqlite_transaction_mode: (self.db.get_database_backend() == DbBackend::Sqlite)
                .then_some(SqliteTransactionMode::Immediate),
        };
        Ok(self.db.begin_with_options(options).await?)
    }

    async fn try_batch(
        &self,
        claims: &[Claim],
        may_commit: &(dyn Fn() -> bool + Sync),
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
        let mut written = self.insert_orders(&transaction, rows.collect(), attempt).await?;
        fault!("insert.after", return Err(StoreError::Away("injected".into())));
        // The rest was there before, or conflicts with another order.
        let others = claims.iter().map(|claim| claim.order.id).filter(|id| !written.contains(id));
        let there = read_back(&transaction, others.collect()).await?;
        let mut new = Vec::new();
        let mut answers = Vec::with_capacity(claims.len());
        for claim in claims {
            // The same order twice in one batch is one new order.
            if written.remove(&claim.order.id) {
                new.push(claim);
                answers.push(Recorded::Confirmed);
            } else if let Some((status, failure)) = there.get(&claim.order.id) {
                answers.push(Recorded::Already(*status, *failure));
            } else if new.iter().any(|new: &&Claim| new.order.id == claim.order.id) {
                answers.push(Recorded::Already(OrderStatus::Confirmed, None));
            } else {
                return roll_back(transaction, Refusal::Conflict).await;
            }
        }
        if !new.is_empty() {
            if let Some(refusal) = self.add_units(&transaction, &new, &deadlines.limits).await? {
                return roll_back(transaction, refusal).await;
            }
            if let Some(refusal) = raise_sold(&transaction, &new).await? {
                return roll_back(transaction, refusal).await;
            }
        }
        fault!("commit.before", return Err(StoreError::Away("injected".into())));
        if !may_commit() {
            transaction.rollback().await?;
            return Err(StoreError::LeaseEnded);
        }
        transaction.commit().await?;
        fault!("commit.after", return Err(StoreError::Away("injected".into())));
        Ok(Ok(answers))
    }

    /// How long the orders of each sale may wait for their payment, from now by the database's clock:
    /// a backlog must not let them expire at birth, and no other clock may let them expire early.
    pub(super) async fn deadlines(
        &self,
        transaction: &DatabaseTransaction,
        claims: &[Claim],
    ) -> Result<Deadlines, StoreError> {
        let mut sales: Vec<&str> = claims.iter().map(|claim| claim.order.sale.as_str()).collect();
        sales.sort_unstable();
        sales.dedup();
        let rows: Vec<(String, i32, Option<i32>, i64)> = sale::Entity::find()
            .select_only()
            .columns([sale::Column::Id, sale::Column::LimitPerUser, sale::Column::PayWithinS])
            .column_as(self.clock(), "now_ms")
            .filter(is_one_of(transaction, sale::Column::Id, sales))
            .into_tuple()
            .all(transaction)
            .await?;
        // A sale without a row: its orders are refused, and wait for no payment.
        let now = rows.first().map_or_else(Millis::now, |(.., now)| Millis(*now));
        let limits = rows.iter().map(|(id, limit, ..)| (id.clone(), i64::from(*limit))).collect();
        let within = |seconds: Option<i32>| {
            seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs)
        };
        let pay_within =
            rows.into_iter().filter_map(|(id, _, seconds, _)| Some((id, within(seconds)?))).collect();
        Ok(Deadlines { now, pay_within, limits })
    }

    /// Inserts the rows that no unique key refuses; answers the ids of those that it inserted. All rows
    /// carry the id of this attempt.
    pub(super) async fn insert_orders(
        &self,
        transaction: &DatabaseTransaction,
        rows: Vec<order::ActiveModel>,
        attempt: Uuid,
    ) -> Result<HashSet<OrderId>, StoreError> {
        let ids: Vec<Uuid> = rows.iter().map(|row| *row.id.as_ref()).collect();
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let meets = Meets { conflict: self.skip_duplicates(), postgres: "DO NOTHING" };
        let written = insert_many(transaction, rows, &meets).await?;
        // On MySQL it says nothing, since the skipped ones count there.
        let says = self.db.get_database_backend() != DbBackend::MySql;
        if says && written == ids.len() as u64 {
            return Ok(ids.into_iter().map(OrderId::from).collect());
        }
        let written: Vec<Uuid> = order::Entity::find()
            .select_only()
            .column(order::Column::Id)
            .filter(is_one_of(transaction, order::Column::Id, ids))
            .filter(order::Column::AttemptId.eq(attempt))
            .into_tuple()
            .all(transaction)
            .await?;
        Ok(written.into_iter().map(OrderId::from).collect())
    }

    /// Skips a row that any unique key refuses.
    pub(super) fn skip_duplicates(&self) -> OnConflict {
        match self.db.get_database_backend() {
            // MySQL has no DO NOTHING: the row that is there keeps its own id, `id = id`. Not
            // `update_column`, which would write the new order's id over it.
            DbBackend::MySql => {
                OnConflict::new().value(order::Column::Id, Expr::col(order::Column::Id)).to_owned()
            }
            _ => OnConflict::new().do_nothing().to_owned(),
        }
    }
}

async fn roll_back<T>(
    transaction: DatabaseTransaction,
    refusal: Refusal,
) -> Result<Result<T, Refusal>, StoreError> {
    transaction.rollback().await?;
    Ok(Err(refusal))
}

async fn read_back(
    transaction: &DatabaseTransaction,
    ids: Vec<OrderId>,
) -> Result<BTreeMap<OrderId, (OrderStatus, Option<Failure>)>, StoreError> {
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
