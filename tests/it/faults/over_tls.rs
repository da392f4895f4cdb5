//! A sale over TLS: Redis, RabbitMQ and PostgreSQL with certificates of a private authority, which the processes have to
//! trust; and processes that do not trust it, or reach a server by a name that its certificate does not have.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use doorbuster::front::Signer;
use doorbuster::rehearsal::servers::{Ending, Kind, Server, free_port};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};

use crate::support::{Buyer, Database, Doorbuster, World, ask_redis, request, sale, until};

const LONG: Duration = Duration::from_secs(60);

/// Runs openssl in a folder.
fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output();
    let output = output.expect("scripts/install-servers installs it");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// `ca.pem`, and `server.pem` with `server.key` for `localhost`, which the authority has signed.
fn certificates(folder: &Path) {
    let new = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(folder, &format!("{new} -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem"));
    openssl(folder, &format!("{new} -subj /CN=localhost -keyout server.key -out server.csr"));
    std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    let sign = "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names";
    openssl(folder, &format!("{sign} -out server.pem"));
    // The servers run as other users.
    for (file, mode) in [("", 0o755), ("ca.pem", 0o644), ("server.pem", 0o644), ("server.key", 0o644)] {
        std::fs::set_permissions(folder.join(file), PermissionsExt::from_mode(mode)).unwrap();
    }
}

/// Three servers that speak TLS, besides plaintext for the test itself.
struct Secure {
    folder: tempfile::TempDir,
    servers: Vec<Server>,
    /// Their ports for TLS: Redis, RabbitMQ, PostgreSQL.
    ports: [u16; 3],
}

impl Secure {
    async fn start(world: &mut World) -> Self {
        let folder = tempfile::tempdir().unwrap();
        certificates(folder.path());
        let mut servers = Vec::new();
        for (kind, key) in [(Kind::Redis, "redis"), (Kind::Rabbitmq, "queue"), (Kind::Postgres, "database")] {
            let server = Server::start(kind, folder.path()).await.unwrap();
            world.set(&format!("{key}.url={}", server.url));
            servers.push(server);
        }
        let port = servers[2].url.rsplit(':').next().and_then(|end| end.split('/').next()).unwrap().parse();
        let ports = [free_port().unwrap(), free_port().unwrap(), port.unwrap()];
        let secure = Self { folder, servers, ports };
        secure.redis_speaks_tls().await;
        secure.rabbitmq_speaks_tls().await;
        secure.postgres_speaks_tls().await;
        secure
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn redis_speaks_tls(&self) {
        let (ca, cert, key) = (self.file("ca.pem"), self.file("server.pem"), self.file("server.key"));
        let set = format!(
            "CONFIG SET tls-ca-cert-file {} tls-cert-file {} tls-key-file {} tls-auth-clients no tls-port {}",
            ca.display(),
            cert.display(),
            key.display(),
            self.ports[0]
        );
        let _: String = ask_redis(&self.servers[0].url, &set).await;
    }

    async fn rabbitmq_speaks_tls(&self) {
        let (cert, key) = (self.file("server.pem"), self.file("server.key"));
        let listen = format!(
            "rabbit_networking:start_ssl_listener({}, [{{certfile, \"{}\"}}, {{keyfile, \"{}\"}}], 4).",
            self.ports[1],
            cert.display(),
            key.display()
        );
        self.servers[1].control(&["eval", &listen]).await.unwrap();
    }

    /// PostgreSQL takes only a key that nobody else can read.
    async fn postgres_speaks_tls(&self) {
        let key = self.file("postgres.key");
        std::fs::copy(self.file("server.key"), &key).unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        let data = std::fs::metadata(format!("/proc/{}", self.servers[2].pid())).unwrap();
        chown(&key, Some(data.uid()), Some(data.gid())).unwrap();
        let mut session = PgConnection::connect(&self.servers[2].url).await.unwrap();
        for (name, value) in
            [("ssl_cert_file", self.file("server.pem")), ("ssl_key_file", key), ("ssl", "on".into())]
        {
            let set = format!("ALTER SYSTEM SET {name} = '{}'", value.display());
            session.execute(AssertSqlSafe(set)).await.unwrap();
        }
        session.execute("SELECT pg_reload_conf()").await.unwrap();
    }

    /// The same world, over TLS to a host.
    fn world(&self, plain: &World, host: &str) -> World {
        let mut overrides = plain.overrides.clone();
        let [redis, rabbitmq, postgres] = self.ports;
        let path = |server: usize| {
            let path = self.servers[server].url.splitn(4, '/').nth(3);
            path.map(|path| format!("/{path}")).unwrap_or_default()
        };
        let user = |server: usize| {
            let (_, rest) = self.servers[server].url.split_once("://").unwrap();
            rest.rsplit_once('@').map(|(user, _)| format!("{user}@")).unwrap_or_default()
        };
        overrides.push(format!("redis.url=rediss://{host}:{redis}"));
        overrides.push(format!("queue.url=amqps://{}{host}:{rabbitmq}{}", user(1), path(1)));
        overrides.push(format!(
            "database.url=postgres://{}{host}:{postgres}{}?sslmode=verify-full&sslrootcert={}",
            user(2),
            path(2),
            self.file("ca.pem").display()
        ));
        World::with(overrides)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_runs_over_tls_and_only_over_tls_that_can_be_trusted() {
    let mut plain = World::new(Database::Sqlite).await;
    let secure = Secure::start(&mut plain).await;
    let parts = plain.parts().await;
    let sale = sale(&plain.name, 3, 1);
    plain.open_sale(&parts, &sale).await;
    let world = secure.world(&plain, "localhost");
    let ca = secure.file("ca.pem");
    let trusted = [("SSL_CERT_FILE", ca.to_str().unwrap())];
    let front = Doorbuster::start_with_env(&world, "front", &trusted).await;
    let worker = Doorbuster::start_with_env(&world, "worker", &trusted).await;
    until("the front is ready", LONG, async || {
        (request(front.operations, "GET", "/readyz", &[], b"").await.status == 200).then_some(())
    })
    .await;
    let ada = Buyer::with(front.buyers.unwrap(), &Signer::new(world.config().auth()), "ada", None);
    let order = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(order.status, 202, "{}", order.text);
    until("the order is confirmed", LONG, async || {
        (ada.get(&order.headers["location"]).await.json["status"] == "confirmed").then_some(())
    })
    .await;
    let mut session = PgConnection::connect(&secure.servers[2].url).await.unwrap();
    let sessions = session.fetch_one("SELECT count(*) FROM pg_stat_ssl WHERE ssl").await.unwrap();
    assert!(sessions.get::<i64, _>(0) >= 2, "front and worker reach PostgreSQL over TLS");
    drop((front, worker));

    // Without the authority, and under a name that no certificate has.
    let by_address = secure.world(&plain, "127.0.0.1");
    let cases = [
        ("UnknownIssuer", &world, &[][..], &["redis"][..]),
        ("not valid for name", &by_address, &trusted[..], &["redis", "database"][..]),
    ];
    for (why, world, env, refused) in cases {
        let front = Doorbuster::start_with_env(world, "front", env).await;
        until(&format!("readiness says {why}"), LONG, async || {
            let ready = request(front.operations, "GET", "/readyz", &[], b"").await;
            let said = |server: &&str| {
                ready.json["dependencies"][server]["detail"].as_str().unwrap_or_default().contains(why)
            };
            (ready.status == 503 && refused.iter().all(said)).then_some(())
        })
        .await;
        let ready = request(front.operations, "GET", "/readyz", &[], b"").await;
        assert_eq!(ready.json["dependencies"]["broker"]["up"], false, "{}", ready.text);
    }
    parts.store.close().await;
    for server in secure.servers {
        server.stop(Ending::AtOnce).await;
    }
}
