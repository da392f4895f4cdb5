//! Whether restoring writes, and whether the order log gets what it writes.

use sea_orm::DatabaseTransaction;

use crate::store::error::StoreError;
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

/// Ends the transaction of one entry: commits if a row was written, and rolls back otherwise.
pub(super) async fn finish(
    transaction: DatabaseTransaction,
    sale: &str,
    touched: Touched<'_>,
    writing: WriteMode,
    differs: bool,
) -> Result<(), StoreError> {
    if writing == WriteMode::DryRun || !differs {
        return Ok(transaction.rollback().await?);
    }
    if writing == WriteMode::RowsAndLog {
        log(&transaction, sale, [touched]).await?;
    }
    Ok(transaction.commit().await?)
}
