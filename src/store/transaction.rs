//! How transactions begin and how they end.

use std::collections::BTreeSet;

use sea_orm::{
    DatabaseTransaction, DbBackend, IsolationLevel, SqliteTransactionMode, TransactionOptions,
    TransactionTrait as _,
};

use super::error::StoreError;
use super::handle::Store;
use super::places::advance;

/// Called just before COMMIT: whether the caller still holds the lease under which it writes. A lease can expire while
/// the transaction runs.
pub type MayCommit<'a> = &'a (dyn Fn() -> bool + Sync);

impl Store {
    /// Begins a transaction that writes. Fails if the database is known to be behind.
    pub(in crate::store) async fn begin(&self) -> Result<DatabaseTransaction, StoreError> {
        self.ensure_current().await?;
        self.begin_restoring().await
    }

    /// Begins a transaction that writes what the database has lost, so it may be behind.
    pub(in crate::store) async fn begin_restoring(&self) -> Result<DatabaseTransaction, StoreError> {
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

    /// Commits changes of these sales, and advances their places. Otherwise rolls back: with [`StoreError::Behind`] if
    /// the database has lost commits.
    pub(in crate::store) async fn commit(
        &self,
        transaction: DatabaseTransaction,
        sales: &[&str],
    ) -> Result<(), StoreError> {
        self.commit_if(&|| true, transaction, sales).await
    }

    /// The same, but only if `may_commit` allows it; otherwise rolls back and returns [`StoreError::LeaseEnded`].
    pub(in crate::store) async fn commit_if(
        &self,
        may_commit: MayCommit<'_>,
        transaction: DatabaseTransaction,
        sales: &[&str],
    ) -> Result<(), StoreError> {
        let places = advance(&transaction, &BTreeSet::from_iter(sales.iter().copied())).await?;
        // The connection may have been opened for this transaction.
        if self.witnesses.is_in_doubt() || !self.witnesses.have_heard() {
            self.check_installation_in(&transaction).await?;
            self.hear_witnesses().await?;
        }
        if !self.witnesses.have_heard() {
            transaction.rollback().await?;
            let why = "nothing is written before redis has said how far the database had come";
            return Err(StoreError::Away(why.into()));
        }
        if let Some(behind) = self.witnesses.behind_of(&places) {
            transaction.rollback().await?;
            self.witnesses.judge(Some(behind.clone()));
            return Err(behind.into());
        }
        if !may_commit() {
            transaction.rollback().await?;
            return Err(StoreError::LeaseEnded);
        }
        transaction.commit().await?;
        for (sale, place) in places {
            self.witnesses.observe(&sale, place);
        }
        Ok(())
    }

    /// Commits restored rows of a sale. A database that is behind keeps the places of its sales, so that it stays behind
    /// until everything has been restored, and advances that of the replay. If it has lost what the replay had restored,
    /// it rolls back with [`StoreError::Behind`].
    pub(in crate::store) async fn commit_restored(
        &self,
        may_commit: MayCommit<'_>,
        transaction: DatabaseTransaction,
        sales: &[&str],
    ) -> Result<(), StoreError> {
        let behind = self.behind_in(&transaction, sales).await?.is_some();
        let replay = self.witnesses.replay();
        let sales = if behind { std::slice::from_ref(&replay) } else { sales };
        self.commit_if(may_commit, transaction, sales).await
    }
}
