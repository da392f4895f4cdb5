//! A SQLite database whose rows are copied and put back in place: the file and every open connection stay the same, and all
//! rows are old ones from one moment on.

use std::path::PathBuf;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};

/// The copy is another file in the same folder.
pub struct SqliteCopy {
    path: String,
    copy: String,
}

impl SqliteCopy {
    pub fn of(url: &str) -> Self {
        let path = url.strip_prefix("sqlite:").expect("a SQLite URL");
        let copy = PathBuf::from(path).with_extension("backup").display().to_string();
        Self { path: path.to_owned(), copy }
    }

    pub async fn make(&self) {
        run(&self.path, &[format!("VACUUM INTO '{}'", self.copy)]).await;
    }

    /// Runs a statement in the copy.
    pub async fn execute(&self, statement: &str) {
        run(&self.copy, &[statement.to_owned()]).await;
    }

    /// Runs a statement in the database itself.
    pub async fn execute_in_place(&self, statement: &str) {
        run(&self.path, &[statement.to_owned()]).await;
    }

    /// In one transaction. Nobody else can write meanwhile.
    pub async fn restore(&self) {
        let mut statements = vec![format!("ATTACH '{}' AS copy", self.copy), "BEGIN IMMEDIATE".into()];
        for table in self.tables().await {
            statements.push(format!("DELETE FROM main.{table}"));
            statements.push(format!("INSERT INTO main.{table} SELECT * FROM copy.{table}"));
        }
        statements.push("COMMIT".into());
        run(&self.path, &statements).await;
    }

    async fn tables(&self) -> Vec<String> {
        let mut connection = connect(&self.path).await;
        let names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
        let rows = connection.fetch_all(names).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

async fn connect(path: &str) -> sqlx::SqliteConnection {
    sqlx::SqliteConnection::connect(&format!("sqlite:{path}")).await.unwrap()
}

async fn run(path: &str, statements: &[String]) {
    let mut connection = connect(path).await;
    for statement in statements {
        connection.execute(AssertSqlSafe(statement.as_str())).await.expect(statement);
    }
    connection.close().await.unwrap();
}
