use sea_orm::{DbErr, RuntimeErr};

/// One variant per thing that a caller can do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database is away, busy or not migrated yet, or a transaction lost a race: wait and
    /// repeat with the same ids. A COMMIT whose answer was lost is here too: it may be done.
    #[error("the database cannot do it now: {0}")]
    Away(String),
    /// A row with this identity exists already.
    #[error("{0} exists already")]
    Exists(&'static str),
    /// No repetition will mend it: a statement that this database refuses, a row that cannot be read.
    #[error("the database refused: {0}")]
    Broken(String),
}

impl StoreError {
    pub(super) fn unreadable(what: &str, text: impl std::fmt::Debug) -> Self {
        Self::Broken(format!("{what} in the database cannot be read: {text:?}"))
    }
}

impl From<DbErr> for StoreError {
    fn from(error: DbErr) -> Self {
        let text = match &error {
            // sqlx tries until the time is over, and then no longer knows why it failed.
            DbErr::ConnectionAcquire(_) | DbErr::Conn(RuntimeErr::SqlxError(_)) => {
                format!("no connection to it ({error}); is it running, and is database.url right?")
            }
            _ => error.to_string(),
        };
        let passing = match &error {
            DbErr::ConnectionAcquire(_) | DbErr::Conn(_) => true,
            DbErr::Exec(RuntimeErr::SqlxError(sqlx)) | DbErr::Query(RuntimeErr::SqlxError(sqlx)) => {
                passes(sqlx)
            }
            _ => false,
        };
        if passing { Self::Away(text) } else { Self::Broken(text) }
    }
}

fn passes(error: &sqlx::Error) -> bool {
    use sqlx::Error;
    match error {
        Error::Io(_)
        | Error::Tls(_)
        | Error::Protocol(_)
        | Error::PoolTimedOut
        | Error::PoolClosed
        | Error::WorkerCrashed
        | Error::BeginFailed => true,
        Error::Database(error) => {
            error.code().is_some_and(|code| passes_by_code(&code))
                || error.message().contains("no such table")
        }
        _ => false,
    }
}

/// SQLSTATE classes of PostgreSQL and MySQL, and SQLite's primary result codes.
fn passes_by_code(code: &str) -> bool {
    // PostgreSQL: 08 connection, 40 rollback (deadlock, serialization), 53 resources, 55P03 lock,
    // 57P0x shutdown, 42P01 no such table (not migrated). MySQL: 40001 deadlock, HY000 covers lock
    // waits and shutdown, 42S02 no such table, 70100 killed.
    const CLASSES: [&str; 9] = ["08", "40", "53", "55P03", "57P", "42P01", "42S02", "70100", "HY000"];
    if code.len() == 5 && CLASSES.iter().any(|class| code.starts_with(class)) {
        return true;
    }
    // SQLite: 5 busy, 6 locked, 10 I/O, 13 full, 14 cannot open; extended codes carry them in the low byte.
    code.parse::<u32>()
        .is_ok_and(|code| code.to_string().len() <= 4 && [5, 6, 10, 13, 14].contains(&(code & 0xff)))
}
