//! Many rows in one prepared statement. A statement with a row of values per order would have a different text for each
//! batch size, so the database would parse and plan it each time, and a batch of 256 has five thousand values.
//!
//! PostgreSQL gets one array per column (`UNNEST`), so one text serves any number of rows. The other databases get
//! chunks of a power of two, so few texts serve. Rows are read back only where nothing else gives the answer:
//! PostgreSQL scans a table that was not analysed yet for a list of keys.

use sea_orm::sea_query::{ArrayType, Expr, ExprTrait as _, Func, OnConflict, SimpleExpr};
use sea_orm::{
    ActiveModelTrait, ActiveValue, ColumnTrait, ConnectionTrait, DatabaseTransaction, DbBackend,
    EntityName as _, EntityTrait, FromQueryResult as _, IdenStatic as _, IntoActiveModel, Iterable as _,
    QueryTrait as _, Statement, Value,
};

use super::error::StoreError;

/// Rows in one statement where each row binds its values: below the bind limit of SQLite, 32,766.
const MAX_ROWS: usize = 512;

/// How to handle a row whose key already exists.
pub(in crate::store) struct OnExisting {
    /// On all databases but PostgreSQL.
    pub(in crate::store) conflict: OnConflict,
    /// On PostgreSQL, the text after `ON CONFLICT`.
    pub(in crate::store) postgres: &'static str,
}

impl OnExisting {
    fn on_conflict(&self) -> String {
        format!("ON CONFLICT {}", self.postgres)
    }
}

/// Inserts the rows. Returns how many rows the database says it wrote; MySQL counts skipped rows too.
pub(in crate::store) async fn insert_many<A>(
    transaction: &DatabaseTransaction,
    rows: Vec<A>,
    existing: &OnExisting,
) -> Result<u64, StoreError>
where
    A: ActiveModelTrait + Send,
    <A::Entity as EntityTrait>::Model: IntoActiveModel<A>,
{
    if transaction.get_database_backend() == DbBackend::Postgres {
        return insert_unnested(transaction, rows, &existing.on_conflict()).await;
    }
    let mut written = 0;
    for chunk in chunks(rows) {
        let query = A::Entity::insert_many(chunk).on_conflict(existing.conflict.clone()).into_query();
        written += transaction.execute(&query).await?.rows_affected();
    }
    Ok(written)
}

/// Inserts rows whose keys do not exist: an existing one is an error.
pub(in crate::store) async fn insert_new<A>(
    transaction: &DatabaseTransaction,
    rows: Vec<A>,
) -> Result<(), StoreError>
where
    A: ActiveModelTrait + Send,
    <A::Entity as EntityTrait>::Model: IntoActiveModel<A>,
{
    if transaction.get_database_backend() == DbBackend::Postgres {
        return insert_unnested(transaction, rows, "").await.map(drop);
    }
    for chunk in chunks(rows) {
        transaction.execute(&A::Entity::insert_many(chunk).into_query()).await?;
    }
    Ok(())
}

async fn insert_unnested<A: ActiveModelTrait>(
    transaction: &DatabaseTransaction,
    rows: Vec<A>,
    on_conflict: &str,
) -> Result<u64, StoreError> {
    let Some((sql, values)) = unnested(rows, on_conflict)? else { return Ok(0) };
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    Ok(transaction.execute_raw(statement).await?.rows_affected())
}

/// Inserts the rows, and returns them as they stand afterwards: on PostgreSQL those that existed before, on SQLite all,
/// on MySQL none.
pub(in crate::store) async fn add_many<A>(
    transaction: &DatabaseTransaction,
    rows: Vec<A>,
    existing: &OnExisting,
) -> Result<Vec<<A::Entity as EntityTrait>::Model>, StoreError>
where
    A: ActiveModelTrait + Send,
    <A::Entity as EntityTrait>::Model: IntoActiveModel<A>,
{
    let backend = transaction.get_database_backend();
    let mut written = Vec::new();
    match backend {
        DbBackend::Postgres => {
            let Some((sql, values)) = unnested(rows, &existing.on_conflict())? else { return Ok(Vec::new()) };
            // An inserted row has no `xmax`; an updated row has ours.
            let sql =
                format!("WITH written AS ({sql} RETURNING *, xmax) SELECT * FROM written WHERE xmax <> 0");
            written.extend(
                transaction.query_all_raw(Statement::from_sql_and_values(backend, sql, values)).await?,
            );
        }
        _ => {
            for chunk in chunks(rows) {
                let mut query =
                    A::Entity::insert_many(chunk).on_conflict(existing.conflict.clone()).into_query();
                if backend == DbBackend::MySql {
                    transaction.execute(&query).await?;
                } else {
                    query.returning_all();
                    written.extend(transaction.query_all(&query).await?);
                }
            }
        }
    }
    written.iter().map(|row| Ok(<A::Entity as EntityTrait>::Model::from_query_result(row, "")?)).collect()
}

/// Chunks of a power of two, the largest first.
fn chunks<A>(rows: Vec<A>) -> impl Iterator<Item = Vec<A>> {
    let mut rows = rows.into_iter();
    std::iter::from_fn(move || {
        let size = MAX_ROWS.min(1 << rows.len().checked_ilog2()?);
        Some(rows.by_ref().take(size).collect())
    })
}

/// A condition: the column, an id or a text, has one of these values. Never true without values. A few statement texts
/// serve any number of values, as above: an array, or the last value repeated up to a power of two.
pub(in crate::store) fn is_one_of<V: Into<Value>>(
    on: &impl ConnectionTrait,
    column: impl ColumnTrait,
    values: impl IntoIterator<Item = V>,
) -> SimpleExpr {
    let mut values: Vec<Value> = values.into_iter().map(Into::into).collect();
    let Some(last) = values.last().cloned() else { return column.is_in(values) };
    if on.get_database_backend() == DbBackend::Postgres {
        let kind = if matches!(last, Value::Uuid(_)) { ArrayType::Uuid } else { ArrayType::String };
        let array = Value::Array(kind, Some(Box::new(values)));
        return Expr::col(column.as_column_ref()).eq(Func::cust("ANY").arg(Expr::value(array)));
    }
    values.resize(values.len().next_power_of_two(), last);
    column.is_in(values)
}

/// `INSERT … SELECT … FROM UNNEST(…)` with its values; `None` without rows. Every column must be set. A value that is
/// the same in all rows is passed once, as most columns are in a batch of one sale. In the arrays of a nullable
/// column an empty text or a zero stands for NULL: no such column of ours uses them as values.
fn unnested<A: ActiveModelTrait>(
    mut rows: Vec<A>,
    on_conflict: &str,
) -> Result<Option<(String, Vec<Value>)>, StoreError> {
    let (mut names, mut picks) = (Vec::new(), Vec::new());
    let (mut arrays, mut fields, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for column in <A::Entity as EntityTrait>::Column::iter() {
        let name = column.as_str();
        let cells = rows.iter_mut().map(|row| match row.take(column) {
            ActiveValue::Set(value) | ActiveValue::Unchanged(value) => Ok(value),
            ActiveValue::NotSet => Err(StoreError::unreadable("a row to write", name)),
        });
        let mut cells: Vec<Value> = cells.collect::<Result<_, _>>()?;
        let Some(first) = cells.first() else { return Ok(None) };
        let (kind, sql, nothing) = match first {
            Value::String(_) => (ArrayType::String, "text", "''"),
            Value::Int(_) => (ArrayType::Int, "int4", "0"),
            Value::BigInt(_) => (ArrayType::BigInt, "int8", "0"),
            Value::Uuid(_) => (ArrayType::Uuid, "uuid", "'00000000-0000-0000-0000-000000000000'"),
            other => return Err(StoreError::unreadable("a kind of column", other)),
        };
        names.push(name);
        let at = values.len() + 1;
        // The first column is a key and always an array, because SELECT needs at least one to select from.
        if !fields.is_empty() && cells.iter().all(|cell| cell == first) {
            values.push(cells.swap_remove(0));
            picks.push(format!("${at}::{sql}"));
            continue;
        }
        let full = |cell: Value| match cell {
            Value::String(None) => Value::String(Some(String::new())),
            Value::Int(None) => Value::Int(Some(0)),
            Value::BigInt(None) => Value::BigInt(Some(0)),
            Value::Uuid(None) => Value::Uuid(Some(uuid::Uuid::nil())),
            cell => cell,
        };
        values.push(Value::Array(kind, Some(Box::new(cells.into_iter().map(full).collect()))));
        arrays.push(format!("${at}::{sql}[]"));
        fields.push(name);
        picks.push(match column.def().is_null() {
            true => format!("NULLIF(a.{name}, {nothing})"),
            false => format!("a.{name}"),
        });
    }
    let table = A::Entity::default();
    let sql = format!(
        "INSERT INTO {} ({}) SELECT {} FROM UNNEST({}) AS a({}) {on_conflict}",
        table.table_name(),
        names.join(", "),
        picks.join(", "),
        arrays.join(", "),
        fields.join(", "),
    );
    Ok(Some((sql, values)))
}
