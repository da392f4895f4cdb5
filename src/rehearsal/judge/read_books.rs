//! Reads the servers, past every proxy.

use super::books::{BookError, Books};
use super::{gate_books, sql_books};

/// The servers that the books are read from, past every proxy.
pub struct Servers {
    /// Redis.
    pub redis: String,
    /// PostgreSQL, or MariaDB if it begins with `mysql`.
    pub database: String,
}

/// Reads the books of a sale. Redis and the database are read one after the other, so the books are only exact at rest.
pub async fn read_books(servers: &Servers, sale: &str) -> Result<Books, BookError> {
    let mut books = sql_books::read(&servers.database, sale).await?;
    books.gate = gate_books::read(&servers.redis, sale).await?;
    Ok(books)
}
