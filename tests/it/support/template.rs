//! A PostgreSQL database that is dumped, and later replaced by what was dumped, with its clients cut off.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use super::dump::Dump;

pub struct Template {
    server: String,
    name: String,
    dump: Dump,
}

impl Template {
    pub fn of(url: &str) -> Self {
        let (server, name) = url.rsplit_once('/').expect("a name");
        Self { server: server.to_owned(), name: name.to_owned(), dump: Dump::of(url) }
    }

    async fn in_database(&self, database: &str, statements: &[String]) {
        let url = format!("{}/{database}", self.server);
        let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
        for statement in statements {
            connection.execute(AssertSqlSafe(statement.as_str())).await.unwrap();
        }
        connection.close().await.unwrap();
    }

    /// Ends every connection and allows no new one.
    fn cut_off(&self) -> [String; 2] {
        let name = &self.name;
        [
            format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"),
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"),
        ]
    }

    /// No client notices.
    pub async fn make(&self) {
        self.dump.make().await;
    }

    /// Runs a statement in the copy.
    pub async fn execute(&self, statement: &str) {
        self.in_database(&format!("{}_backup", self.name), &[statement.to_owned()]).await;
    }

    /// Runs a statement in the database itself.
    pub async fn execute_in_place(&self, statement: &str) {
        self.in_database(&self.name, &[statement.to_owned()]).await;
    }

    pub async fn restore(&self) {
        let (name, [closed, cut]) = (&self.name, self.cut_off());
        let restored = format!("CREATE DATABASE {name} TEMPLATE {name}_backup");
        self.in_database("postgres", &[closed, cut, format!("DROP DATABASE {name}"), restored]).await;
    }
}
