//! Persisting accepted orders: many in one transaction, because the stock row is hot and one
//! COMMIT for each would make it the bottleneck.
//!
//! Inside the transaction: insert the orders, add to the users' units, raise `sold`. The counter
//! comes last, so that its row is locked for the shortest time; users and items in a fixed order,
//! so that two workers cannot wait for each other in a circle.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use sea_orm::sea_query::{Expr, ExprTrait as _, OnConflict};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait as _,
    IsolationLevel, QueryFilter as _, QuerySelect as _, SqliteTransactionMode, TransactionOptions,
    TransactionTrait as _,
};
use uuid::Uuid;

use super::entities::{item, order, sale, user_units};
use super::many::{Meets, add_many, insert_many, is_one_of};
use super::{Store, StoreError};
use crate::domain::{Failure, Millis, Order, OrderId, OrderStatus, Sku};
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
    /// began may have lost it. `false` is [`StoreError::Overdue`].
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
            return Err(StoreError::Overdue);
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

    /// The database's clock, in ms, as an expression: that at which the statement began, or an index
    /// could not be searched by it.
    pub(super) fn clock(&self) -> sea_orm::sea_query::SimpleExpr {
        Expr::cust(match self.db.get_database_backend() {
            DbBackend::MySql => "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
            DbBackend::Postgres => "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)",
            _ => "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
        })
    }

    /// What time it is for the database.
    pub async fn clock_now(&self) -> Result<Millis, StoreError> {
        self.within(self.now(&self.db)).await
    }

    pub(super) async fn now(&self, connection: &impl ConnectionTrait) -> Result<Millis, StoreError> {
        let mut query = sea_orm::sea_query::Query::select();
        query.expr_as(self.clock(), "now_ms");
        let row = connection.query_one(&query).await?;
        let row = row.ok_or_else(|| StoreError::Away("the database does not tell the time".into()))?;
        Ok(Millis(row.try_get_by_index(0)?))
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

    /// Adds the new orders' units to their users', then looks whether anyone holds too many, or
    /// was written for by a later holder of the lease. The upsert has locked the rows.
    pub(super) async fn add_units(
        &self,
        transaction: &DatabaseTransaction,
        new: &[&Claim],
        limits: &BTreeMap<String, i64>,
    ) -> Result<Option<Refusal>, StoreError> {
        struct Added {
            units: i64,
            fence: i64,
            limit: i64,
        }
        let mut users: BTreeMap<(&str, &str), Added> = BTreeMap::new();
        for claim in new {
            let key = (claim.order.sale.as_str(), claim.order.user.as_str());
            let added = users.entry(key).or_insert(Added { units: 0, fence: i64::MIN, limit: i64::MAX });
            added.units += i64::from(claim.order.quantity);
            added.fence = Ord::max(added.fence, claim.fence);
            added.limit = Ord::min(added.limit, i64::from(claim.order.limit));
        }
        // A raised limit may have let a later order overtake this one.
        let limit_now = |sale: &str, limit: i64| Ord::max(limits.get(sale).copied().unwrap_or(0), limit);
        // By sale and name, so that two workers cannot wait for each other in a circle.
        let rows = users.iter().map(|((sale, user), added)| user_units::ActiveModel {
            sale_id: Set((*sale).to_owned()),
            user_id: Set((*user).to_owned()),
            units: Set(added.units),
            fence: Set(added.fence),
        });
        let backend = self.db.get_database_backend();
        let (units, fence) = match backend {
            DbBackend::MySql => ("units + VALUES(units)", "GREATEST(fence, VALUES(fence))"),
            _ => ("user_units.units + excluded.units", "MAX(user_units.fence, excluded.fence)"),
        };
        let meets = Meets {
            conflict: OnConflict::columns([user_units::Column::SaleId, user_units::Column::UserId])
                .value(user_units::Column::Units, Expr::cust(units))
                .value(user_units::Column::Fence, Expr::cust(fence))
                .to_owned(),
            postgres: "(sale_id, user_id) DO UPDATE SET units = user_units.units + excluded.units, \
                       fence = GREATEST(user_units.fence, excluded.fence)",
        };
        // A row that is new holds what it was given; the others are looked at.
        if users.iter().any(|((sale, _), added)| added.units > limit_now(sale, added.limit)) {
            return Ok(Some(Refusal::Limit));
        }
        let mut held = add_many(transaction, rows.collect(), &meets).await?;
        if backend == DbBackend::MySql {
            let mut sales: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (sale, user) in users.keys() {
                sales.entry(sale).or_default().push(user);
            }
            for (sale, names) in sales {
                let rows = user_units::Entity::find()
                    .filter(user_units::Column::SaleId.eq(sale))
                    .filter(is_one_of(transaction, user_units::Column::UserId, names));
                held.extend(rows.all(transaction).await?);
            }
        }
        for held in held {
            let Some(added) = users.get(&(held.sale_id.as_str(), held.user_id.as_str())) else { continue };
            if held.fence > added.fence {
                return Ok(Some(Refusal::Fence));
            }
            if held.units > limit_now(&held.sale_id, added.limit) {
                return Ok(Some(Refusal::Limit));
            }
        }
        Ok(None)
    }
}

/// The last line against overselling: `sold` rises only as far as `stock`.
pub(super) async fn raise_sold(
    transaction: &DatabaseTransaction,
    new: &[&Claim],
) -> Result<Option<Refusal>, StoreError> {
    let mut items: BTreeMap<(&str, &Sku), i64> = BTreeMap::new();
    for claim in new {
        *items.entry((claim.order.sale.as_str(), &claim.order.sku)).or_default() +=
            i64::from(claim.order.quantity);
    }
    for ((sale, sku), units) in items {
        let raised = Expr::col(item::Column::Sold).add(units);
        let updated = item::Entity::update_many()
            .col_expr(item::Column::Sold, raised.clone())
            .filter(item::Column::SaleId.eq(sale))
            .filter(item::Column::Sku.eq(sku.as_str()))
            .filter(raised.lte(Expr::col(item::Column::Stock)))
            .exec(transaction)
            .await?;
        if updated.rows_affected == 0 {
            let key = (sale.to_owned(), sku.to_string());
            let known = item::Entity::find_by_id(key).one(transaction).await?.is_some();
            let why = if known { Failure::OutOfStock } else { Failure::UnknownItem };
            return Ok(Some(Refusal::Stock(why)));
        }
    }
    Ok(None)
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

pub(super) fn confirmed_row(
    claim: &Claim,
    attempt: Uuid,
    now: Millis,
    pay_by: Option<Millis>,
) -> order::ActiveModel {
    let order = &claim.order;
    order::ActiveModel {
        id: Set(order.id.uuid()),
        sale_id: Set(order.sale.to_string()),
        user_id: Set(order.user.to_string()),
        sku: Set(order.sku.to_string()),
        quantity: Set(i32::try_from(order.quantity).unwrap_or(i32::MAX)),
        status: Set(OrderStatus::Confirmed.as_str().into()),
        failure: Set(None),
        // Epochs begin at 1: of some orders the number is not known.
        epoch: Set((order.number.epoch > 0).then_some(order.number.epoch)),
        seq: Set((order.number.epoch > 0).then_some(order.number.seq)),
        limit_per_user: Set(i32::try_from(order.limit).unwrap_or(i32::MAX)),
        fence: Set(claim.fence),
        attempt_id: Set(Some(attempt)),
        key_digest: Set(order.key.to_string()),
        live_key: Set(Some(order.key.to_string())),
        fingerprint: Set(order.fingerprint.to_string()),
        version: Set(1),
        accepted_at_ms: Set(order.accepted_at.0),
        recorded_at_ms: Set(now.0),
        updated_at_ms: Set(now.0),
        pay_by_ms: Set(pay_by.map(|pay_by| pay_by.0)),
    }
}

/// An order that has ended before a worker wrote its row. It keeps its number.
pub(super) fn ended_row(claim: &Claim, status: OrderStatus, attempt: Uuid) -> order::ActiveModel {
    let mut row = confirmed_row(claim, attempt, Millis::now(), None);
    row.status = Set(status.as_str().into());
    row.live_key = Set(None);
    row
}

pub(super) fn failed_row(claim: &Claim, failure: Failure, attempt: Uuid) -> order::ActiveModel {
    let mut row = confirmed_row(claim, attempt, Millis::now(), None);
    row.status = Set(OrderStatus::Failed.as_str().into());
    row.failure = Set(Some(failure.as_str().into()));
    row.live_key = Set(None);
    if failure == Failure::NumberReused {
        // Its number belongs to the other order, by the unique key.
        row.epoch = Set(None);
        row.seq = Set(None);
    }
    row
}
