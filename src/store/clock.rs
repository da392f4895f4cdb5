//! The database's clock, by which deadlines are told: hosts' clocks differ.

use sea_orm::sea_query::Expr;
use sea_orm::{ConnectionTrait, DbBackend};

use super::{Store, StoreError};
use crate::domain::Millis;

impl Store {
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
    pub async fn read_clock(&self) -> Result<Millis, StoreError> {
        self.within(self.now(&self.db)).await
    }

    pub(super) async fn now(&self, connection: &impl ConnectionTrait) -> Result<Millis, StoreError> {
        let mut query = sea_orm::sea_query::Query::select();
        query.expr_as(self.clock(), "now_ms");
        let row = connection.query_one(&query).await?;
        let row = row.ok_or_else(|| StoreError::Away("the database does not tell the time".into()))?;
        Ok(Millis(row.try_get_by_index(0)?))
    }
}
