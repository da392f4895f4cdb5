//! Sums over a sale's orders, for the audit.

use std::collections::{BTreeMap, HashMap, HashSet};

use sea_orm::sea_query::{Expr, ExprTrait as _, SimpleExpr};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, DbBackend, EntityTrait as _, PaginatorTrait as _, QueryFilter as _,
    QuerySelect as _, Select,
};

use super::order_pages::{UserRange, UserRanges};
use crate::domain::{Number, OrderId, OrderStatus, Place, SaleId, Sku, UserId};
use crate::store::entities::{gate_return, order, sale_act};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::is_one_of;
use crate::store::places::place_of;
use crate::store::sales::{SaleRow, read_sale_by};
use crate::store::states::ActState;

/// Orders that one query adds up.
const PAGE: u64 = 2_000;

/// Sums over a sale's orders.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Orders with a row, in any state.
    pub orders: u64,
    /// Orders that hold units.
    pub live_orders: u64,
    /// Live orders that wait for their payment.
    pub unpaid_orders: u64,
    /// Orders that the database refused.
    pub failed_orders: u64,
    /// Units of live orders.
    pub live_units: BTreeMap<Sku, i64>,
    /// Units of ended orders whose returns to the gate are pending.
    pub returning_units: BTreeMap<Sku, i64>,
    /// Users whose live orders exceed the limit.
    pub users_over_limit: Vec<UserId>,
}

/// The sums over a sale's orders at one of its places. They are the same as long as the sale is at that place, because
/// every commit of its changes advances it.
#[derive(Debug, Clone)]
pub struct KnownTotals {
    place: Place,
    totals: Totals,
}

impl KnownTotals {
    /// Whether the sale was at the same place in both.
    pub fn is_as_old_as(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

/// A sale in the database at one moment.
#[derive(Debug, Clone)]
pub struct SaleSnapshot {
    /// The requested orders that have a row.
    pub recorded: HashSet<OrderId>,
    /// The sale and its items.
    pub row: SaleRow,
    /// The sums over its orders.
    pub totals: Totals,
    /// Whether a change of stock is under way.
    pub is_restocked: bool,
    place: Place,
}

impl SaleSnapshot {
    /// The sums, for the next snapshot of the same sale.
    pub fn known(&self) -> KnownTotals {
        KnownTotals { place: self.place, totals: self.totals.clone() }
    }
}

/// Orders and units by item and state.
type Sums = Vec<(String, String, i64, i64)>;

impl Store {
    /// A sale's row, the sums over its orders, and which of these orders have a row, all at one moment. `None` if there
    /// is no such sale.
    ///
    /// The orders are added up some thousand at a time, each time within the time limit of one query, and `progress` is
    /// called with the orders added up so far. If the sale is still at the place of `known`, they are not read.
    pub async fn snapshot(
        &self,
        sale: &SaleId,
        ids: &[OrderId],
        known: Option<&KnownTotals>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Option<SaleSnapshot>, StoreError> {
        let transaction = self.within(self.begin_snapshot()).await?;
        let books = async {
            let mut recorded = HashSet::new();
            for ids in ids.chunks(1_000) {
                recorded.extend(self.within(row_versions(&transaction, ids)).await?.into_keys());
            }
            let Some(row) = self.within(read_sale_by(&transaction, sale)).await? else { return Ok(None) };
            let is_restocked = self.within(is_restocked(&transaction, sale)).await?;
            let place = self.within(place_of(&transaction, sale)).await?;
            let totals = match known.filter(|known| known.place == place) {
                Some(known) => known.totals.clone(),
                None => self.totals_in(&transaction, sale, progress).await?,
            };
            Ok(Some(SaleSnapshot { recorded, row, totals, is_restocked, place }))
        };
        let books = books.await;
        let _ = self.within(async { Ok(transaction.rollback().await?) }).await;
        books
    }

    /// The sums over a sale's orders. They are added up some thousand at a time, so if orders change meanwhile, they
    /// are not those of one moment.
    pub async fn totals(&self, sale: &SaleId) -> Result<Totals, StoreError> {
        self.totals_in(&self.db, sale, &|_| {}).await
    }

    /// How many orders of a sale have a row, in any state. In one query: with many millions it may take too long.
    pub async fn count_orders(&self, sale: &SaleId) -> Result<u64, StoreError> {
        self.count(order::Entity::find().filter(order::Column::SaleId.eq(sale.as_str()))).await
    }

    async fn count(&self, orders: Select<order::Entity>) -> Result<u64, StoreError> {
        // Not `count`, which some databases answer by copying every row first.
        let orders = orders.select_only().column_as(order::Column::Id.count(), "orders");
        let counted: Option<i64> =
            self.within(async { Ok(orders.into_tuple().one(&self.db).await?) }).await?;
        Ok(u64::try_from(counted.unwrap_or(0)).unwrap_or(0))
    }

    /// How many orders with a row have a number after `first`, up to and including `last`, which is of the same epoch.
    pub async fn count_orders_between(
        &self,
        sale: &SaleId,
        first: Number,
        last: Number,
    ) -> Result<u64, StoreError> {
        let orders = order::Entity::find()
            .filter(order::Column::SaleId.eq(sale.as_str()))
            .filter(order::Column::Epoch.eq(first.epoch))
            .filter(order::Column::Seq.gt(first.seq))
            .filter(order::Column::Seq.lte(last.seq));
        self.count(orders).await
    }

    /// The versions of those of these orders that have a row.
    pub async fn row_versions(&self, ids: &[OrderId]) -> Result<HashMap<OrderId, i32>, StoreError> {
        self.within(row_versions(&self.db, ids)).await
    }

    async fn totals_in(
        &self,
        connection: &impl ConnectionTrait,
        sale: &SaleId,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Totals, StoreError> {
        let mut totals = Totals {
            returning_units: self.within(returning_units(connection, sale)).await?,
            ..Default::default()
        };
        let mut ranges = UserRanges::new(sale, PAGE);
        while let Some(range) = self.within(ranges.next(connection)).await? {
            totals.add(self.within(sums_by_status(connection, sale, &range)).await?)?;
            for user in self.within(users_over_limit(connection, sale, &range)).await? {
                let user = user.parse().map_err(|_| StoreError::unreadable("a user", &user))?;
                totals.users_over_limit.push(user);
            }
            ranges.finish(range);
            progress(totals.orders);
        }
        Ok(totals)
    }
}

impl Totals {
    fn add(&mut self, sums: Sums) -> Result<(), StoreError> {
        for (sku, status, count, units) in sums {
            let unreadable = |_| StoreError::unreadable("an order", (&sku, &status));
            let status: OrderStatus = status.parse().map_err(unreadable)?;
            let count = u64::try_from(count).unwrap_or(0);
            self.orders += count;
            if status.is_live() {
                self.live_orders += count;
                if status == OrderStatus::Confirmed {
                    self.unpaid_orders += count;
                }
                *self.live_units.entry(sku.parse().map_err(unreadable)?).or_default() += units;
            } else if status == OrderStatus::Failed {
                self.failed_orders += count;
            }
        }
        Ok(())
    }
}

async fn row_versions(
    connection: &impl ConnectionTrait,
    ids: &[OrderId],
) -> Result<HashMap<OrderId, i32>, StoreError> {
    let found: Vec<(uuid::Uuid, i32)> = order::Entity::find()
        .select_only()
        .columns([order::Column::Id, order::Column::Version])
        .filter(is_one_of(connection, order::Column::Id, ids.iter().map(|id| id.uuid())))
        .into_tuple()
        .all(connection)
        .await?;
    Ok(found.into_iter().map(|(id, version)| (id.into(), version)).collect())
}

async fn is_restocked(connection: &impl ConnectionTrait, sale: &SaleId) -> Result<bool, StoreError> {
    let changes = sale_act::Entity::find()
        .filter(sale_act::Column::SaleId.eq(sale.as_str()))
        .filter(sale_act::Column::ItemVersion.is_not_null())
        .filter(sale_act::Column::State.eq(ActState::Pending.as_str()));
    Ok(changes.count(connection).await? > 0)
}

/// As a bigint: SUM of integers is a decimal on some databases.
fn bigint(connection: &impl ConnectionTrait, value: SimpleExpr) -> SimpleExpr {
    let bigint = if connection.get_database_backend() == DbBackend::MySql { "SIGNED" } else { "BIGINT" };
    value.cast_as(bigint)
}

async fn sums_by_status(
    connection: &impl ConnectionTrait,
    sale: &SaleId,
    users: &UserRange,
) -> Result<Sums, StoreError> {
    let units = bigint(connection, Expr::col(order::Column::Quantity).sum());
    let sums = users
        .orders_of(sale)
        .select_only()
        .column(order::Column::Sku)
        .column(order::Column::Status)
        .column_as(order::Column::Id.count(), "orders")
        .column_as(units, "units")
        .group_by(order::Column::Sku)
        .group_by(order::Column::Status)
        .into_tuple()
        .all(connection)
        .await?;
    Ok(sums)
}

async fn users_over_limit(
    connection: &impl ConnectionTrait,
    sale: &SaleId,
    users: &UserRange,
) -> Result<Vec<String>, StoreError> {
    let units = bigint(connection, Expr::col(order::Column::Quantity).sum());
    let limit = bigint(connection, Expr::col(order::Column::LimitPerUser).max());
    let over = users
        .orders_of(sale)
        .select_only()
        .column(order::Column::UserId)
        .filter(order::Column::LiveKey.is_not_null())
        .group_by(order::Column::UserId)
        .having(units.gt(limit))
        .into_tuple()
        .all(connection)
        .await?;
    Ok(over)
}

async fn returning_units(
    connection: &impl ConnectionTrait,
    sale: &SaleId,
) -> Result<BTreeMap<Sku, i64>, StoreError> {
    let units = bigint(connection, Expr::col(gate_return::Column::Quantity).sum());
    let returning: Vec<(String, i64)> = gate_return::Entity::find()
        .filter(gate_return::Column::SaleId.eq(sale.as_str()))
        .select_only()
        .column(gate_return::Column::Sku)
        .column_as(units, "units")
        .group_by(gate_return::Column::Sku)
        .into_tuple()
        .all(connection)
        .await?;
    returning
        .into_iter()
        .map(|(sku, units)| Ok((sku.parse().map_err(|_| StoreError::unreadable("a sku", &sku))?, units)))
        .collect()
}
