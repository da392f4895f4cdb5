//! Reads the tables.

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, FromRow};
use uuid::Uuid;

use super::books::{BookError, Books, ChangeRow, ItemRow, OrderRow, PaymentRow};

/// A connection to either database.
enum Database {
    Postgres(PgConnection),
    Mariadb(MySqlConnection),
}

impl Database {
    async fn open(url: &str) -> Result<Self, sqlx::Error> {
        Ok(match url.starts_with("mysql") {
            true => Self::Mariadb(MySqlConnection::connect(url).await?),
            false => Self::Postgres(PgConnection::connect(url).await?),
        })
    }

    /// The rows of `table` of one sale. In `columns`, `id:name` is an id as text and `int:name` a number of 64 bits.
    async fn rows<T>(&mut self, columns: &[&str], table: &str, sale: &str) -> Result<Vec<T>, sqlx::Error>
    where
        T: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, MySqlRow> + Send + Unpin,
    {
        let (id, int) = match self {
            Self::Postgres(_) => ("CAST({} AS text)", "CAST({} AS bigint)"),
            Self::Mariadb(_) => ("LOWER(HEX({}))", "CAST({} AS SIGNED)"),
        };
        let column = |name: &&str| match name.split_once(':') {
            Some(("id", name)) => id.replace("{}", name),
            Some((_, name)) => int.replace("{}", name),
            None => (*name).to_owned(),
        };
        let columns: Vec<String> = columns.iter().map(column).collect();
        let select = format!("SELECT {} FROM {table} WHERE sale_id = ", columns.join(", "));
        match self {
            Self::Postgres(connection) => {
                let query = AssertSqlSafe(format!("{select}$1"));
                sqlx::query_as(query).bind(sale).fetch_all(connection).await
            }
            Self::Mariadb(connection) => {
                let query = AssertSqlSafe(format!("{select}?"));
                sqlx::query_as(query).bind(sale).fetch_all(connection).await
            }
        }
    }
}

pub(super) async fn read(url: &str, sale: &str) -> Result<Books, BookError> {
    let mut database = Database::open(url).await?;
    let mut books = Books::default();
    let columns =
        ["id:id", "user_id", "sku", "int:quantity", "status", "int:accepted_at_ms", "int:recorded_at_ms"];
    type Order = (String, String, String, i64, String, i64, i64);
    for row in database.rows::<Order>(&columns, "orders", sale).await? {
        let (id, user, sku, quantity, status, accepted_at_ms, recorded_at_ms) = row;
        let id = read_id(&id)?;
        books.orders.push(OrderRow { id, user, sku, quantity, status, accepted_at_ms, recorded_at_ms });
    }
    let columns = ["id:order_id", "int:version", "from_status", "to_status", "int:at_ms"];
    for row in database.rows::<(String, i64, String, String, i64)>(&columns, "order_events", sale).await? {
        let (order, version, from, to, at_ms) = row;
        books.changes.push(ChangeRow { order: read_id(&order)?, version, from, to, at_ms });
    }
    let columns = ["event_id", "id:order_id", "state", "id:new_order_id"];
    for row in
        database.rows::<(String, String, String, Option<String>)>(&columns, "payment_events", sale).await?
    {
        let (event, order, state, new_order) = row;
        let new_order = new_order.as_deref().map(read_id).transpose()?;
        books.payments.push(PaymentRow { event, order: read_id(&order)?, state, new_order });
    }
    for (sku, stock, sold) in database.rows(&["sku", "int:stock", "int:sold"], "items", sale).await? {
        books.items.push(ItemRow { sku, stock, sold });
    }
    let mut acts: Vec<(i64, String, String)> =
        database.rows(&["int:at_ms", "kind", "state"], "sale_acts", sale).await?;
    acts.sort();
    books.acts = acts.into_iter().filter(|(.., state)| state == "done").map(|(_, kind, _)| kind).collect();
    let returning: Vec<(String,)> = database.rows(&["id:order_id"], "gate_returns", sale).await?;
    books.returning = i64::try_from(returning.len()).unwrap_or(i64::MAX);
    for table in ["webhook_events", "webhook_deliveries"] {
        let waiting: Vec<(String,)> = database.rows(&["id:order_id"], table, sale).await?;
        books.webhooks_waiting += i64::try_from(waiting.len()).unwrap_or(i64::MAX);
    }
    Ok(books)
}

fn read_id(text: &str) -> Result<Uuid, BookError> {
    Uuid::try_parse(text).map_err(|_| BookError::Unreadable(text.to_owned()))
}
