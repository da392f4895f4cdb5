//! Dumps by the tools that administrators use, loaded while every process runs and no connection is closed.

use std::process::Command;

use doorbuster::rehearsal::servers::postgres_program;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};

/// How often a dump is loaded until PostgreSQL does not end it for a deadlock with a transaction of a worker.
const TRIES: u32 = 20;

/// A database of PostgreSQL or MariaDB that is dumped into a copy of it, and later replaced by that copy.
pub struct Dump {
    url: String,
    copy: String,
}

impl Dump {
    pub fn of(url: &str) -> Self {
        Self { url: url.to_owned(), copy: format!("{url}_backup") }
    }

    fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres")
    }

    fn name(url: &str) -> &str {
        url.rsplit_once('/').expect("a name").1
    }

    /// Dumps the database, and loads that into the copy, in place of an earlier one.
    pub async fn make(&self) {
        let copy = Self::name(&self.copy);
        self.execute_in_place(&format!("DROP DATABASE IF EXISTS {copy}")).await;
        self.execute_in_place(&format!("CREATE DATABASE {copy}")).await;
        if self.is_postgres() {
            return self.load_archive(&self.url, &self.copy, &[]).await;
        }
        let script = tempfile::NamedTempFile::new().unwrap();
        let mut dump = client("mariadb-dump", &self.url);
        dump.arg("--single-transaction").stdout(script.reopen().unwrap());
        succeeds(dump).await;
        let mut load = client("mariadb", &self.copy);
        load.stdin(script.reopen().unwrap());
        succeeds(load).await;
    }

    /// Runs a statement in the copy.
    pub async fn execute(&self, statement: &str) {
        execute(&self.copy, statement).await;
    }

    /// Runs a statement in the database itself.
    pub async fn execute_in_place(&self, statement: &str) {
        execute(&self.url, statement).await;
    }

    /// PostgreSQL drops the tables and loads those of the dump in one transaction. MariaDB has no such transactions, but
    /// it renames all tables at once, so the tables of the loaded dump take the place of the present ones.
    pub async fn restore(&self) {
        if self.is_postgres() {
            let in_one_transaction = ["--clean", "--if-exists", "--single-transaction"];
            return self.load_archive(&self.copy, &self.url, &in_one_transaction).await;
        }
        let (name, copy) = (Self::name(&self.url), Self::name(&self.copy));
        self.execute_in_place(&format!("CREATE DATABASE {name}_former")).await;
        let renamed = self.tables().await.into_iter().map(|table| {
            format!("{name}.{table} TO {name}_former.{table}, {copy}.{table} TO {name}.{table}")
        });
        let renamed = renamed.collect::<Vec<_>>().join(", ");
        self.execute_in_place(&format!("RENAME TABLE {renamed}")).await;
    }

    async fn tables(&self) -> Vec<String> {
        let mut connection = sqlx::MySqlConnection::connect(&self.url).await.unwrap();
        let names = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()";
        let rows = connection.fetch_all(names).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn load_archive(&self, from: &str, to: &str, how: &[&str]) {
        let archive = tempfile::NamedTempFile::new().unwrap();
        let mut dump = Command::new(postgres_program("pg_dump").expect("pg_dump"));
        dump.args(["--format=custom", "--dbname", from, "--file"]).arg(archive.path());
        succeeds(dump).await;
        for _ in 1..TRIES {
            let mut restore = Command::new(postgres_program("pg_restore").expect("pg_restore"));
            restore.args(how).args(["--exit-on-error", "--dbname", to]).arg(archive.path());
            match run(restore).await {
                Ok(()) => return,
                Err(said) => assert!(said.contains("deadlock detected"), "{said}"),
            }
        }
        panic!("the dump could not be loaded: a deadlock, {TRIES} times");
    }
}

/// A client of MariaDB, and the database that it works on.
fn client(program: &str, url: &str) -> Command {
    let at = url.split('@').nth(1).and_then(|at| at.split('/').next()).expect("an address");
    let (host, port) = at.split_once(':').expect("a port");
    let mut command = Command::new(program);
    command.args(["--no-defaults", "--user=root", "--host", host, "--port", port]).arg(Dump::name(url));
    command
}

/// Runs a program to its end. The error is what it printed.
async fn run(mut command: Command) -> Result<(), String> {
    let done =
        tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("the program starts");
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
}

async fn succeeds(command: Command) {
    let what = format!("{command:?}");
    run(command).await.expect(&what);
}

async fn execute(url: &str, statement: &str) {
    let statement = AssertSqlSafe(statement);
    if url.starts_with("postgres") {
        let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
        connection.execute(statement).await.unwrap();
        connection.close().await.unwrap();
    } else {
        let mut connection = sqlx::MySqlConnection::connect(url).await.unwrap();
        connection.execute(statement).await.unwrap();
        connection.close().await.unwrap();
    }
}
