//! A real PgBouncer between Doorbuster and PostgreSQL. The one in the path is used, or the one that
//! `DOORBUSTER_PGBOUNCER` names: what must hold depends on its version.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use doorbuster::domain::Sale;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::support::{Buyer, Database, World, at_rest, run, sale, until};

const LONG: Duration = Duration::from_secs(60);

/// Debian installs it where an ordinary user's path does not lead.
fn program() -> PathBuf {
    let debian = PathBuf::from("/usr/sbin/pgbouncer");
    match std::env::var_os("DOORBUSTER_PGBOUNCER") {
        Some(named) => named.into(),
        None if debian.exists() => debian,
        None => "pgbouncer".into(),
    }
}

/// Whether it follows prepared statements in transaction mode: since 1.21.
fn follows_statements() -> bool {
    let output =
        Command::new(program()).arg("--version").output().expect("scripts/install-servers installs it");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().nth(1).expect("a version").to_owned();
    let mut parts = version.split('.').map(|part| part.parse::<u32>().expect("a number"));
    (parts.next().expect("a major version"), parts.next().expect("a minor version")) >= (1, 21)
}

/// Ends with the test.
struct PgBouncer {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A database, and a role of its own with which a pooler enters it.
struct Behind {
    url: String,
    role: String,
}

impl Behind {
    async fn of(world: &World) -> Self {
        let behind = Self {
            url: world.config().database.url,
            role: format!("pooled_{}", world.name.replace('-', "_")),
        };
        behind.execute(format!("CREATE ROLE {} LOGIN SUPERUSER", behind.role)).await;
        behind
    }

    /// Past the pooler.
    async fn execute(&self, statement: String) {
        let mut direct = PgConnection::connect(&self.url).await.unwrap();
        direct.execute(sqlx::AssertSqlSafe(statement)).await.unwrap();
    }

    /// Starts a pooler, and leads the world through it.
    async fn pool(&self, world: &mut World, mode: &str) -> PgBouncer {
        let (host, database) =
            self.url.split_once('@').and_then(|(_, at)| at.split_once('/')).expect("a database");
        let port = host.split(':').nth(1).expect("a port");
        let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let settings = format!(
            "[databases]\n{database} = host=127.0.0.1 port={port} user={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {listen}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
             default_pool_size = 20\nmax_client_conn = 100\n",
            self.role
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).unwrap();
        let child = command(folder.path(), &file).spawn().expect("PgBouncer starts");
        let bouncer = PgBouncer { child, _folder: folder };
        until("PgBouncer answers", LONG, async || {
            tokio::net::TcpStream::connect(("127.0.0.1", listen)).await.ok().map(drop)
        })
        .await;
        world.set(&format!("database.url=postgres://doorbuster@127.0.0.1:{listen}/{database}"));
        bouncer
    }
}

/// It refuses to run as root, so root starts it as nobody. It dies with the tests.
fn command(folder: &Path, file: &Path) -> Command {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
    }
    command.arg("--").arg(program()).arg("-q").arg(file);
    command
}

/// Two sales sell together, so that many transactions are under way at once.
async fn sells(world: &World) {
    let running = world.running().await;
    let sales: Vec<Sale> =
        ["a", "b"].iter().map(|nth| sale(&format!("{}{nth}", world.name), 40, 1)).collect();
    for sale in &sales {
        world.open_sale(&running.parts, sale).await;
    }
    let buying = (0..120).map(|nth| {
        let (buyer, sale) = (Buyer::of(&running, &format!("user{nth}")), &sales[nth % 2]);
        async move { buyer.buy(sale.id.as_str(), "k").await.status }
    });
    let answers = futures_util::future::join_all(buying).await;
    assert_eq!(answers.iter().filter(|status| **status == 202).count(), 80, "{answers:?}");
    for sale in &sales {
        let books = at_rest(&running, sale).await;
        assert!(books.balances() && books.live_orders == 40, "{books:?}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_keeps_sessions_is_as_good_as_none() {
    let mut world = World::new(Database::Postgres).await;
    let behind = Behind::of(&world).await;
    let _bouncer = behind.pool(&mut world, "session").await;
    sells(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_shares_sessions_is_recognised() {
    let mut world = World::new(Database::Postgres).await;
    let behind = Behind::of(&world).await;
    let bouncer = behind.pool(&mut world, "transaction").await;
    let (code, out, err) = run(Some(&world), &["worker"]).await;
    if !follows_statements() {
        assert!(code != 0 && err.contains("a query could run another client's"), "{code} {out}{err}");
        let (code, out, _) = run(Some(&world), &["doctor"]).await;
        assert!(code != 0 && out.contains("PgBouncer 1.21"), "{code} {out}");
        return;
    }
    let missing = format!("ALTER ROLE {} SET statement_timeout", behind.role);
    assert!(code != 0 && err.contains(&missing), "{code} {out}{err}");
    for name in ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"] {
        behind.execute(format!("ALTER ROLE {} SET {name} = '4s'", behind.role)).await;
    }
    drop(bouncer);
    let _bouncer = behind.pool(&mut world, "transaction").await;
    sells(&world).await;
}
