//! Whether restoring writes, and whether the order log gets what it writes.

use sea_orm::DatabaseTransaction;

use crate::store::error::StoreError;
use crate::store::handle::Store;
use crate::store::log_outbox::{Touched, log};

/// How to treat a sale, an act or a payment that differs from its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Compare, and write nothing.
    DryRun,
    /// Write the rows.
    Rows,
    /// Write the rows, and put them into the log outbox: for entries that are not from the log.
    RowsAndLog,
}

impl WriteMode {
    /// The mode for a row that differs from its entry or does not: nothing is written if it does not.
    pub(super) fn if_differs(self, differs: bool) -> Self {
        if differs { self } else { Self::DryRun }
    }
}

impl Store {
    /// Ends the transaction of one entry: commits what was written, and rolls back a dry run.
    pub(super) async fn finish_restore(
        &self,
        transaction: DatabaseTransaction,
        sale: &str,
        touched: Touched<'_>,
        writing: WriteMode,
    ) -> Result<(), StoreError> {
        if writing == WriteMode::DryRun {
            return Ok(transaction.rollback().await?);
        }
        if writing == WriteMode::RowsAndLog {
            log(&transaction, sale, [touched]).await?;
        }
        self.commit_restored(&|| true, transaction, &[sale]).await
    }
}
