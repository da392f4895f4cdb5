//! Many rows in one statement that the database has planned before. The text of a statement with a row of
//! values for each order changes with their number: it would be parsed and planned anew for each batch, and a
//! batch of 256 has five thousand values.
//!
//! PostgreSQL gets one array per column (`UNNEST`), so that one text serves any number of rows; the others get
//! chunks of a power of two, so that few texts serve. Nothing is read back that can be told otherwise: on a
//! table that was not analysed yet, PostgreSQL searches all of it for a list of keys.

use sea_orm::sea_query::{ArrayType, Expr, ExprTrait as _, Func, OnConflict, SimpleExpr};
use sea_orm::{
    ActiveModelTrait, ActiveValue, ColumnTrait, ConnectionTrait, DatabaseTransaction, DbBackend,
    EntityName as _, EntityTrait, FromQueryResult as _, IdenStatic as _, IntoActiveModel, Iterable as _,
    QueryTrait as _, Statement, Value,
};

use super::StoreError;

/// Rows in one statement where each has values of its own: within the bind limit of SQLite, 32,766.
const MOST: usize = 512;

/// What is done about a row whose key is there.
pub(super) struct Meets {
    /// For all but PostgreSQL.
    pub(super) conflict: OnConflict,
    /// The same for PostgreSQL, as it stands behind `ON CONFLICT`.
    pub(super) postgres: &'static str,
}

/// Writes the rows; answers how many the database says that it wrote. MySQL counts those too that it skipped.
pub(super) async fn insert_many<A>(
    transaction: &DatabaseTransaction,
    rows: Vec<A>,
    meets: &Meets,
) -> Result<u64, StoreError>
where
    A: ActiveModelTrait + Send,
    <A::Entity as EntityTrait>::Model: IntoActiveModel<A>,
{
    if transaction.get_database_backend() == DbBackend::Postgres {
        let Some((sql, values)) = unnested(rows, meets.postgres)? else { return Ok(0) };
        let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
        return Ok(transaction.execute_raw(statement).await?.rows_affected());
    }
    let mut written = 0;
    for chunk in chunks(rows) {
        let query = A::Entity::insert_many(chunk).on_conflict(meets.conflict.clone()).into_query();
        written += transaction.execute(&query).await?.rows_affected();
    }
    Ok(written)
}

/// The same, and answers the rows as they are then: PostgreSQL those that were there before, SQLite all,
/// MySQL none.
pub(super) async fn add_many<A>(
    transaction: &DatabaseTransaction,
    rows: Vec<A>,
    meets: &Meets,
) -> Result<Vec<<A::Entity as EntityTrait>::Model>, StoreError>
where
    A: ActiveModelTrait + Send,
    <A::Entity as EntityTrait>::Model: IntoActiveModel<A>,
{
    let backend = transaction.get_database_backend();
    let mut written = Vec::new();
    match backend {
        DbBackend::Postgres => {
            let Some((sql, values)) = unnested(rows, meets.postgres)? else { return Ok(Vec::new()) };
            // A row that was inserted has no `xmax`, one that was updated has ours.
            let sql =
                format!("WITH written AS ({sql} RETURNING *, xmax) SELECT * FROM written WHERE xmax <> 0");
            written.extend(
                transaction.query_all_raw(Statement::from_sql_and_values(backend, sql, values)).await?,
            );
        }
        _ => {
            for chunk in chunks(rows) {
                let mut query =
                    A::Entity::insert_many(chunk).on_conflict(meets.conflict.clone()).into_query();
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
        let most = MOST.min(1 << rows.len().checked_ilog2()?);
        Some(rows.by_ref().take(most).collect())
    })
}

/// The column's value, an id or a text, is one of these; never where there are none. Few texts of a statement
/// for any number of values, as above: an array, or values that are repeated until there is a power of two.
pub(super) fn is_one_of<V: Into<Value>>(
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

/// `INSERT … SELECT … FROM UNNEST(…)` with what it takes; `None` where there are no rows. Every column must be
/// set. What is the same in all rows is passed once: of a batch of one sale most columns are. In an array an
/// empty text and a zero stand for NULL where the column may be NULL: none of ours means anything by them.
fn unnested<A: ActiveModelTrait>(
    mut rows: Vec<A>,
    conflict: &str,
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
        // The first column is a key, and always an array: there must be one to select from.
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
        "INSERT INTO {} ({}) SELECT {} FROM UNNEST({}) AS a({}) ON CONFLICT {conflict}",
        table.table_name(),
        names.join(", "),
        picks.join(", "),
        arrays.join(", "),
        fields.join(", "),
    );
    Ok(Some((sql, values)))
}
