//! The database's clock, which decides deadlines: the clocks of hosts differ.

use sea_orm::sea_query::{Expr, SimpleExpr};
use sea_orm::{ConnectionTrait, DbBackend};

use super::error::StoreError;
use super::handle::Store;
use crate::domain::Millis;

/// The expression of [`Store::clock`] for a kind of database.
pub(in crate::store) fn clock_of(backend: DbBackend) -> SimpleExpr {
    Expr::cust(match backend {
        DbBackend::MySql => "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
        DbBackend::Postgres => "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)",
        _ => "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
    })
}

impl Store {
    /// The database's clock in milliseconds, as an expression. It stands still during a statement, because otherwise it
    /// could not be used to search an index.
    pub(in crate::store) fn clock(&self) -> SimpleExpr {
        clock_of(self.db.get_database_backend())
    }

    /// The time by the database's clock.
    pub async fn read_clock(&self) -> Result<Millis, StoreError> {
        self.within(now(&self.db)).await
    }
}

/// The time by the database's clock.
pub(in crate::store) async fn now(connection: &impl ConnectionTrait) -> Result<Millis, StoreError> {
    let mut query = sea_orm::sea_query::Query::select();
    query.expr_as(clock_of(connection.get_database_backend()), "now_ms");
    let row = connection.query_one(&query).await?;
    let row = row.ok_or_else(|| StoreError::Away("the database did not return the time".into()))?;
    Ok(Millis(row.try_get_by_index(0)?))
}
