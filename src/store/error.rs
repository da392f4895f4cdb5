//! Errors by what a caller can do about them.

use sea_orm::{DbErr, RuntimeErr};

use super::witnesses::Behind;

/// An error of the database: one variant per thing that a caller can do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database is away, busy or not set up yet, or a transaction lost a race: wait, then repeat with the same ids.
    /// This includes a COMMIT whose answer was lost: it may have succeeded.
    #[error("the database cannot do it now: {0}")]
    Away(String),
    /// Another transaction holds a row for longer than any of this process would; nothing was written. Repeat it later
    /// with the same ids, and what has nothing to do with that row at once.
    #[error("a row is locked by another session: {0}")]
    Locked(String),
    /// The caller's lease had ended before COMMIT; nothing was written. Repeat under a new lease.
    #[error("the lease had ended before the commit")]
    LeaseEnded,
    /// A row with this identity already exists.
    #[error("{0} already exists")]
    Exists(&'static str),
    /// The database has lost commits that it had confirmed. Nothing is written to it and nothing that it says is passed
    /// on until a replay has brought it up to date: wait, then repeat.
    #[error(transparent)]
    Behind(#[from] Behind),
    /// An error in the data, which no retry repairs: a value or a key that the database refuses, or a row that
    /// cannot be read.
    #[error("the database refused: {0}")]
    Broken(String),
}

impl StoreError {
    /// A row that cannot be read; `what` names it.
    pub(in crate::store) fn unreadable(what: &str, text: impl std::fmt::Debug) -> Self {
        Self::Broken(format!("{what} in the database cannot be read: {text:?}"))
    }
}

impl From<DbErr> for StoreError {
    fn from(error: DbErr) -> Self {
        let text = match &error {
            // sqlx retries until it times out, and by then it no longer knows the cause.
            DbErr::ConnectionAcquire(_) | DbErr::Conn(RuntimeErr::SqlxError(_)) => {
                format!("no connection to it ({error}); is it running, and is database.url right?")
            }
            DbErr::Exec(RuntimeErr::SqlxError(sqlx)) | DbErr::Query(RuntimeErr::SqlxError(sqlx))
                if lacks_table(sqlx) =>
            {
                format!("{error}: run `doorbuster migrate`, which creates and upgrades the tables")
            }
            _ => error.to_string(),
        };
        match &error {
            DbErr::Exec(RuntimeErr::SqlxError(sqlx)) | DbErr::Query(RuntimeErr::SqlxError(sqlx))
                if is_about_the_data(sqlx) =>
            {
                Self::Broken(text)
            }
            DbErr::Exec(RuntimeErr::SqlxError(sqlx)) | DbErr::Query(RuntimeErr::SqlxError(sqlx))
                if is_a_lock(sqlx) =>
            {
                Self::Locked(text)
            }
            DbErr::Type(_) | DbErr::Json(_) => Self::Broken(text),
            _ => Self::Away(text),
        }
    }
}

/// Whether a table or a column is missing. SQLite has no code of its own for that.
fn lacks_table(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    let code = error.code().unwrap_or_default();
    ["42P01", "42703", "42S02", "42S22"].contains(&&*code) || error.message().starts_with("no such ")
}

/// Whether the session waited too long for a lock: 55P03 in PostgreSQL, 1205 in MySQL.
fn is_a_lock(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(error) = error else { return false };
    let mysql = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>();
    mysql.is_some_and(|error| error.number() == 1205) || error.code().is_some_and(|code| code == "55P03")
}

/// Only the listed errors are about the data. Anything else, such as a missing table or right, a full disk, or a
/// shutdown, would make the database refuse every order: that is an outage, and callers wait it out.
fn is_about_the_data(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            // MySQL refuses some values under its general code: 1366 is a value outside the column's character
            // set, 3819 a CHECK.
            let mysql = error
                .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
                .is_some_and(|error| [1366, 3819].contains(&error.number()));
            mysql || is_data_code(&code)
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => true,
        _ => false,
    }
}

/// SQLSTATE classes 22 (data exception) and 23 (constraint), and errors that a trigger raises (P0001, 45000). Of
/// SQLite's primary result codes 18 (too big), 19 (constraint), 20 (mismatch) and 25 (range); extended codes carry
/// the primary code in their low byte.
fn is_data_code(code: &str) -> bool {
    if code.len() == 5 {
        return code.starts_with("22") || code.starts_with("23") || ["P0001", "45000"].contains(&code);
    }
    code.parse::<u32>().is_ok_and(|code| [18, 19, 20, 25].contains(&(code & 0xff)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_would_meet_every_order_is_an_outage() {
        // PostgreSQL and MySQL: connection, deadlock, disk, lock, shutdown, no table, no column, no
        // right, general. SQLite: busy, locked, I/O, full, cannot open, read-only, no table.
        for code in ["08006", "40P01", "53100", "55P03", "57P01", "42P01", "42703", "42501", "HY000", "70100"]
        {
            assert!(!is_data_code(code), "{code}");
        }
        for code in ["5", "6", "10", "13", "14", "8", "1", "517", "1032"] {
            assert!(!is_data_code(code), "{code}");
        }
        for code in
            ["22001", "22003", "P0001", "45000", "23505", "23514", "23000", "19", "2067", "1555", "275"]
        {
            assert!(is_data_code(code), "{code}");
        }
    }
}
