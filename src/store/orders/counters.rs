//! The counters of the last line of defence: the units of users, and the sold units of items. A counter that would rise
//! too far refuses the order.

use std::collections::BTreeMap;

use sea_orm::sea_query::{ArrayType, Expr, ExprTrait as _, OnConflict};
use sea_orm::{
    ActiveValue::Set, ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, DbBackend,
    EntityTrait as _, QueryFilter as _, QuerySelect as _, Statement, Value,
};

use super::claim::{Claim, Refusal};
use crate::domain::{Failure, Sku};
use crate::store::entities::{item, order, user_units};
use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::many::{OnExisting, add_many, is_one_of};

/// The units that new orders add to one user of a sale.
struct Added {
    units: i64,
    fence: i64,
    limit: i64,
}

/// By sale and user. The order is fixed, so that two workers do not deadlock on each other's rows.
type AddedByUser<'a> = BTreeMap<(&'a str, &'a str), Added>;

impl Store {
    /// Adds the new orders' units to their users, then checks whether a user holds too many, or a later holder of the
    /// lease has written for them. The upsert has locked the rows.
    pub(in crate::store) async fn add_units(
        &self,
        transaction: &DatabaseTransaction,
        new: &[&Claim],
        limits: &BTreeMap<String, i64>,
    ) -> Result<Option<Refusal>, StoreError> {
        let users = added_by_user(new);
        let mut above = Vec::new();
        // The limit may have been raised since this order was accepted, and a later order recorded first.
        let limit_now = |sale: &str, limit: i64| Ord::max(limits.get(sale).copied().unwrap_or(0), limit);
        // A new row is not checked below, so its units are checked here.
        if users.iter().any(|((sale, _), added)| added.units > limit_now(sale, added.limit)) {
            return Ok(Some(Refusal::Limit));
        }
        for held in upsert_units(transaction, &users).await? {
            let Some(added) = users.get(&(held.sale_id.as_str(), held.user_id.as_str())) else { continue };
            if held.fence > added.fence {
                return Ok(Some(Refusal::Fence));
            }
            if held.units > limit_now(&held.sale_id, added.limit) {
                above.push(held);
            }
        }
        for held in above {
            // The limit may have been raised and lowered again, and a later order was accepted in between.
            if held.units > highest_limit(transaction, &held).await? {
                return Ok(Some(Refusal::Limit));
            }
        }
        Ok(None)
    }
}

/// The highest limit under which any of the user's live orders was accepted: the one by which the audit judges.
async fn highest_limit(
    transaction: &DatabaseTransaction,
    held: &user_units::Model,
) -> Result<i64, StoreError> {
    let limits: Vec<i32> = order::Entity::find()
        .select_only()
        .column(order::Column::LimitPerUser)
        .filter(order::Column::SaleId.eq(&held.sale_id))
        .filter(order::Column::UserId.eq(&held.user_id))
        .filter(order::Column::LiveKey.is_not_null())
        .into_tuple()
        .all(transaction)
        .await?;
    Ok(limits.into_iter().max().map_or(0, i64::from))
}

fn added_by_user<'a>(new: &[&'a Claim]) -> AddedByUser<'a> {
    let mut users = AddedByUser::new();
    for claim in new {
        let key = (claim.order.sale.as_str(), claim.order.user.as_str());
        let added = users.entry(key).or_insert(Added { units: 0, fence: i64::MIN, limit: i64::MAX });
        added.units += i64::from(claim.order.quantity);
        added.fence = Ord::max(added.fence, claim.fence);
        added.limit = Ord::min(added.limit, i64::from(claim.order.limit));
    }
    users
}

/// Writes the users' rows, and returns at least those that existed before, as they stand now.
async fn upsert_units(
    transaction: &DatabaseTransaction,
    users: &AddedByUser<'_>,
) -> Result<Vec<user_units::Model>, StoreError> {
    let rows = users.iter().map(|((sale, user), added)| user_units::ActiveModel {
        sale_id: Set((*sale).to_owned()),
        user_id: Set((*user).to_owned()),
        units: Set(added.units),
        fence: Set(added.fence),
    });
    let backend = transaction.get_database_backend();
    let (units, fence) = match backend {
        DbBackend::MySql => ("units + VALUES(units)", "GREATEST(fence, VALUES(fence))"),
        _ => ("user_units.units + excluded.units", "MAX(user_units.fence, excluded.fence)"),
    };
    let existing = OnExisting {
        conflict: OnConflict::columns([user_units::Column::SaleId, user_units::Column::UserId])
            .value(user_units::Column::Units, Expr::cust(units))
            .value(user_units::Column::Fence, Expr::cust(fence))
            .to_owned(),
        postgres: "(sale_id, user_id) DO UPDATE SET units = user_units.units + excluded.units, \
                   fence = GREATEST(user_units.fence, excluded.fence)",
    };
    let mut held = add_many(transaction, rows.collect(), &existing).await?;
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
    Ok(held)
}

/// Raises `sold` of each item, but never above `stock`: the last line of defence against overselling.
pub(in crate::store) async fn raise_sold(
    transaction: &DatabaseTransaction,
    new: &[&Claim],
) -> Result<Option<Refusal>, StoreError> {
    let mut items: BTreeMap<(&str, &Sku), i64> = BTreeMap::new();
    for claim in new {
        *items.entry((claim.order.sale.as_str(), &claim.order.sku)).or_default() +=
            i64::from(claim.order.quantity);
    }
    if items.len() > 1 && transaction.get_database_backend() == DbBackend::Postgres {
        return raise_many(transaction, &items).await;
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

/// Raises many items in two statements: a statement per item would be a round trip per item, while the rows before it
/// stay locked. The items are locked first in a fixed order, because an UPDATE locks rows as it finds them. The answer
/// does not say which item was refused, so the batch is halved until one order stands alone.
async fn raise_many(
    transaction: &DatabaseTransaction,
    items: &BTreeMap<(&str, &Sku), i64>,
) -> Result<Option<Refusal>, StoreError> {
    const LOCK: &str = "SELECT 1 FROM items JOIN UNNEST($1::text[], $2::text[]) AS a(sale_id, sku) \
         USING (sale_id, sku) ORDER BY sale_id COLLATE \"C\", sku COLLATE \"C\" FOR UPDATE OF items";
    const RAISE: &str = "UPDATE items SET sold = items.sold + a.units \
         FROM UNNEST($1::text[], $2::text[], $3::int8[]) AS a(sale_id, sku, units) \
         WHERE items.sale_id = a.sale_id AND items.sku = a.sku AND items.sold + a.units <= items.stock";
    let array = |kind, cells: Vec<Value>| Value::Array(kind, Some(Box::new(cells)));
    let sales = array(ArrayType::String, items.keys().map(|(sale, _)| (*sale).into()).collect());
    let skus = array(ArrayType::String, items.keys().map(|(_, sku)| sku.as_str().into()).collect());
    let units = array(ArrayType::BigInt, items.values().map(|units| (*units).into()).collect());
    let with =
        |sql: &str, values: Vec<Value>| Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    transaction.execute_raw(with(LOCK, vec![sales.clone(), skus.clone()])).await?;
    let raised = transaction.execute_raw(with(RAISE, vec![sales, skus, units])).await?;
    let refused = raised.rows_affected() != items.len() as u64;
    Ok(refused.then_some(Refusal::Stock(Failure::OutOfStock)))
}

/// Lowers `sold` of items, by sale and item. The rows are locked in a fixed order, so that two transactions do not deadlock.
pub(in crate::store) async fn lower_sold(
    transaction: &DatabaseTransaction,
    items: BTreeMap<(&str, &str), i64>,
) -> Result<(), StoreError> {
    for ((sale, sku), units) in items {
        item::Entity::update_many()
            .col_expr(item::Column::Sold, Expr::col(item::Column::Sold).sub(units))
            .filter(item::Column::SaleId.eq(sale))
            .filter(item::Column::Sku.eq(sku))
            .exec(transaction)
            .await?;
    }
    Ok(())
}
