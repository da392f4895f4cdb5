//! A database whose rows are copied and put back in place, as a dump is that somebody loads into the running database:
//! the tables, the database and every open connection stay the same, and all rows are old ones from one moment on.
//! For MariaDB and SQLite, where a database cannot be replaced under its connections.

use std::path::PathBuf;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};

/// The copy of a MariaDB database is another database, that of a SQLite database another file in the same folder.
pub struct RowCopy {
    url: String,
    copy: String,
}

impl RowCopy {
    pub fn of(url: &str) -> Self {
        let copy = match url.strip_prefix("sqlite:") {
            Some(path) => format!("sqlite:{}", PathBuf::from(path).with_extension("backup").display()),
            None => format!("{url}_backup"),
        };
        Self { url: url.to_owned(), copy }
    }

    fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    /// The name of the database in a MariaDB URL, the path in a SQLite URL.
    fn name(url: &str) -> &str {
        let path = url.strip_prefix("sqlite:");
        path.unwrap_or_else(|| url.rsplit_once('/').expect("a name").1)
    }

    pub async fn make(&self) {
        let (from, to) = (Self::name(&self.url), Self::name(&self.copy));
        if self.is_sqlite() {
            return run(&self.url, &[format!("VACUUM INTO '{to}'")]).await;
        }
        let tables = self.tables().await;
        let mut statements = vec![format!("CREATE DATABASE {to}")];
        statements
            .extend(tables.iter().map(|table| format!("CREATE TABLE {to}.{table} LIKE {from}.{table}")));
        let locks = tables.iter().map(|table| format!("{from}.{table} READ, {to}.{table} WRITE"));
        statements.push(format!("LOCK TABLES {}", locks.collect::<Vec<_>>().join(", ")));
        let copied =
            tables.iter().map(|table| format!("INSERT INTO {to}.{table} SELECT * FROM {from}.{table}"));
        statements.extend(copied);
        statements.push("UNLOCK TABLES".into());
        run(&self.url, &statements).await;
    }

    /// Runs a statement in the copy.
    pub async fn execute(&self, statement: &str) {
        run(&self.copy, &[statement.to_owned()]).await;
    }

    /// Runs a statement in the database itself.
    pub async fn execute_in_place(&self, statement: &str) {
        run(&self.url, &[statement.to_owned()]).await;
    }

    /// In one transaction. Nobody else can write meanwhile.
    pub async fn restore(&self) {
        let (to, from) = (Self::name(&self.url), Self::name(&self.copy));
        let tables = self.tables().await;
        let put_back = |to: &str, from: &str| -> Vec<String> {
            let back = |table: &String| {
                let restored = format!("INSERT INTO {to}.{table} SELECT * FROM {from}.{table}");
                [format!("DELETE FROM {to}.{table}"), restored]
            };
            tables.iter().flat_map(back).collect()
        };
        let statements = if self.is_sqlite() {
            let begin = vec![format!("ATTACH '{from}' AS copy"), "BEGIN IMMEDIATE".into()];
            [begin, put_back("main", "copy"), vec!["COMMIT".into()]].concat()
        } else {
            let locks = tables.iter().map(|table| format!("{to}.{table} WRITE, {from}.{table} READ"));
            let locks = format!("LOCK TABLES {}", locks.collect::<Vec<_>>().join(", "));
            let begin = vec!["SET autocommit = 0".into(), locks];
            [begin, put_back(to, from), vec!["COMMIT".into(), "UNLOCK TABLES".into()]].concat()
        };
        run(&self.url, &statements).await;
    }

    async fn tables(&self) -> Vec<String> {
        if self.is_sqlite() {
            let mut connection = sqlx::SqliteConnection::connect(&self.url).await.unwrap();
            let names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
            let rows = connection.fetch_all(names).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        } else {
            let mut connection = sqlx::MySqlConnection::connect(&self.url).await.unwrap();
            let names = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()";
            let rows = connection.fetch_all(names).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    }
}

async fn run(url: &str, statements: &[String]) {
    if url.starts_with("sqlite:") {
        let mut connection = sqlx::SqliteConnection::connect(url).await.unwrap();
        for statement in statements {
            connection.execute(AssertSqlSafe(statement.as_str())).await.expect(statement);
        }
        connection.close().await.unwrap();
    } else {
        let mut connection = sqlx::MySqlConnection::connect(url).await.unwrap();
        for statement in statements {
            connection.execute(AssertSqlSafe(statement.as_str())).await.expect(statement);
        }
        connection.close().await.unwrap();
    }
}
