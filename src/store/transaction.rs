//! How transactions begin and how they end.

use sea_orm::{
    DatabaseTransaction, DbBackend, IsolationLevel, SqliteTransactionMode, TransactionOptions,
    TransactionTrait as _,
};

use super::error::StoreError;
use super::handle::Store;

/// Called just before COMMIT: whether the caller still holds the lease under which it writes. A lease can expire while
/// the transaction runs.
pub type MayCommit<'a> = &'a (dyn Fn() -> bool + Sync);

impl Store {
    /// Begins a transaction that writes.
    pub(in crate::store) async fn begin(&self) -> Result<DatabaseTransaction, StoreError> {
        let options = TransactionOptions {
            // The default of MySQL locks gaps, on which workers with neighbouring keys deadlock.
            isolation_level: (self.db.get_database_backend() == DbBackend::MySql)
                .then_some(IsolationLevel::ReadCommitted),
            access_mode: None,
            // SQLite has one writer: waiting for the lock at the start beats failing halfway.
            sqlite_transaction_mode: (self.db.get_database_backend() == DbBackend::Sqlite)
                .then_some(SqliteTransactionMode::Immediate),
        };
        Ok(self.db.begin_with_options(options).await?)
    }

    /// Begins a transaction in which every read sees the database at one moment.
    pub(in crate::store) async fn begin_snapshot(&self) -> Result<DatabaseTransaction, StoreError> {
        let options = TransactionOptions {
            isolation_level: (self.db.get_database_backend() != DbBackend::Sqlite)
                .then_some(IsolationLevel::RepeatableRead),
            access_mode: None,
            sqlite_transaction_mode: None,
        };
        Ok(self.db.begin_with_options(options).await?)
    }
}

/// Commits if `may_commit` allows it; otherwise rolls back and returns [`StoreError::LeaseEnded`].
pub(in crate::store) async fn commit_if(
    may_commit: MayCommit<'_>,
    transaction: DatabaseTransaction,
) -> Result<(), StoreError> {
    if !may_commit() {
        transaction.rollback().await?;
        return Err(StoreError::LeaseEnded);
    }
    Ok(transaction.commit().await?)
}
