//! Advancing the places of sales, in the transaction that changes them.

use std::collections::BTreeSet;

use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ActiveValue::Set, ConnectionTrait as _, DatabaseTransaction, DbBackend, EntityTrait as _,
    FromQueryResult as _, QueryFilter as _, QueryTrait as _,
};

use crate::domain::Place;
use crate::store::entities::place;
use crate::store::error::StoreError;
use crate::store::many::is_one_of;

/// Advances the places of these sales and returns them. Call it last, just before COMMIT: it locks a row of each sale,
/// which every other change of that sale needs too. The sales are locked in the order of their ids.
pub(in crate::store) async fn advance(
    transaction: &DatabaseTransaction,
    sales: &BTreeSet<&str>,
) -> Result<Vec<(String, Place)>, StoreError> {
    if sales.is_empty() {
        return Ok(Vec::new());
    }
    let backend = transaction.get_database_backend();
    let next = match backend {
        DbBackend::MySql => "number + 1",
        _ => "places.number + 1",
    };
    let rows = sales.iter().map(|sale| place::ActiveModel {
        sale_id: Set((*sale).to_owned()),
        line: Set(Place::FIRST.line),
        number: Set(Place::FIRST.number),
    });
    let conflict =
        OnConflict::column(place::Column::SaleId).value(place::Column::Number, Expr::cust(next)).to_owned();
    let mut query = place::Entity::insert_many(rows).on_conflict(conflict).into_query();
    let rows = if backend == DbBackend::MySql {
        transaction.execute(&query).await?;
        let written = is_one_of(transaction, place::Column::SaleId, sales.iter().copied());
        place::Entity::find().filter(written).all(transaction).await?
    } else {
        query.returning_all();
        let written = transaction.query_all(&query).await?;
        let rows = written.iter().map(|row| place::Model::from_query_result(row, ""));
        rows.collect::<Result<_, _>>()?
    };
    Ok(rows.into_iter().map(|row| (row.sale_id, Place { line: row.line, number: row.number })).collect())
}
