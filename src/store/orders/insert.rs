//! Inserting the rows of orders, and the deadlines and limits that new orders get from their sales.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ColumnTrait as _, DatabaseTransaction, DbBackend, EntityTrait as _, QueryFilter as _, QuerySelect as _,
};
use uuid::Uuid;

use super::claim::Claim;
use crate::domain::{Millis, OrderId};
use crate::store::entities::{order, sale};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::{OnExisting, insert_many, is_one_of};

/// Payment deadlines and limits of the sales of a batch.
pub(in crate::store) struct Deadlines {
    /// The time by the database's clock.
    pub(in crate::store) now: Millis,
    pay_within: BTreeMap<String, Duration>,
    /// The present limit of units per user, by sale.
    pub(in crate::store) limits: BTreeMap<String, i64>,
}

impl Deadlines {
    pub(in crate::store) fn pay_by(&self, claim: &Claim) -> Option<Millis> {
        self.pay_within.get(claim.order.sale.as_str()).map(|pay_within| self.now.plus(*pay_within))
    }
}

impl Store {
    /// How long the orders of each sale may wait for their payment. The time runs from now, so that orders delayed by a
    /// backlog do not expire at once, and by the database's clock, so that no host lets them expire early.
    pub(in crate::store) async fn deadlines(
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
        // The orders of a sale without a row are refused, so they wait for no payment.
        let now = rows.first().map_or_else(Millis::now, |(.., now)| Millis(*now));
        let limits = rows.iter().map(|(id, limit, ..)| (id.clone(), i64::from(*limit))).collect();
        let within = |seconds: Option<i32>| {
            seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs)
        };
        let pay_within =
            rows.into_iter().filter_map(|(id, _, seconds, _)| Some((id, within(seconds)?))).collect();
        Ok(Deadlines { now, pay_within, limits })
    }

    /// Inserts the rows that no unique key refuses, and returns the ids of the inserted ones. All rows must carry the
    /// id of this attempt, which distinguishes new rows from existing ones on every database. They are written in the
    /// order of their ids, so that two writers of the same orders do not deadlock.
    pub(in crate::store) async fn insert_orders(
        &self,
        transaction: &DatabaseTransaction,
        mut rows: Vec<order::ActiveModel>,
        attempt: Uuid,
    ) -> Result<HashSet<OrderId>, StoreError> {
        rows.sort_unstable_by_key(|row| *row.id.as_ref());
        let ids: Vec<Uuid> = rows.iter().map(|row| *row.id.as_ref()).collect();
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let existing = OnExisting { conflict: self.skip_duplicates(), postgres: "DO NOTHING" };
        let written = insert_many(transaction, rows, &existing).await?;
        // The count is useless on MySQL, where skipped rows count too.
        let counts_inserted = self.db.get_database_backend() != DbBackend::MySql;
        if counts_inserted && written == ids.len() as u64 {
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
    pub(in crate::store) fn skip_duplicates(&self) -> OnConflict {
        match self.db.get_database_backend() {
            // MySQL has no DO NOTHING. `id = id` keeps the existing row's id; `update_column` would overwrite it with
            // the new order's id.
            DbBackend::MySql => {
                OnConflict::new().value(order::Column::Id, Expr::col(order::Column::Id)).to_owned()
            }
            _ => OnConflict::new().do_nothing().to_owned(),
        }
    }
}
