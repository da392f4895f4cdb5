//! A world per test: its own key prefix, queues and database on the shared servers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use doorbuster::domain::{
    ActRequest, Attempt, Fingerprint, IdempotencyKey, Item, KeyDigest, Millis, Number, Order, OrderId, Sale,
    SaleId, SaleState, Sku, Terms, UserId, Window,
};
use doorbuster::gate::{Gate, Versions};
use doorbuster::maintenance::Comparison;
use doorbuster::process::{Config, Parts, Role, Running, Sources};
use doorbuster::queue::OrderLog;
use doorbuster::store::Store;

use super::{servers, until};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    Sqlite,
    Postgres,
    Mariadb,
}

pub struct World {
    pub name: String,
    pub overrides: Vec<String>,
    _folder: Option<tempfile::TempDir>,
}

pub const SECRET: &str = "a secret for tests, long enough for HS256";

impl World {
    pub async fn new(database: Database) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = match database {
            Database::Sqlite => format!("sqlite:{}", folder.path().join("doorbuster.db").display()),
            Database::Postgres => private_database(&servers().postgres, &name).await,
            Database::Mariadb => private_database(&servers().mariadb, &name).await,
        };
        let overrides = vec![
            format!("redis.url={}", servers().redis),
            format!("redis.prefix={name}"),
            "redis.timeout_ms=5000".into(),
            format!("queue.url={}", servers().rabbitmq),
            format!("queue.prefix={name}"),
            format!("database.url={url}"),
            "database.timeout_ms=20000".into(),
            format!("auth.secret={SECRET}"),
            "front.listen=127.0.0.1:0".into(),
            "operations.listen=127.0.0.1:0".into(),
        ];
        Self { name, overrides, _folder: Some(folder) }
    }

    /// The world of another process of the same test. It has no folder, because a killed process would leave it behind.
    pub fn with(overrides: Vec<String>) -> Self {
        let name = overrides.iter().find_map(|pair| pair.strip_prefix("redis.prefix="));
        let name = name.expect("a prefix").to_owned();
        Self { name, overrides, _folder: None }
    }

    pub fn set(&mut self, pair: &str) -> &mut Self {
        self.overrides.push(pair.to_owned());
        self
    }

    pub fn config(&self) -> Config {
        Config::load(&Sources { overrides: self.overrides.clone(), ..Default::default() })
            .expect("a valid configuration")
    }

    /// Opens gate, leases and store, on a migrated database. One that replaces another joins its installation.
    pub async fn parts(&self) -> Parts {
        let config = self.config();
        let store = Store::connect(&config.store()).await.expect("the database");
        store.create_tables().await.expect("migrated");
        let gate = Gate::open(config.gate()).expect("a gate");
        if let Ok(Some(id)) = gate.installation().await {
            store.join_installation(id).await.expect("joined");
        }
        store.migrate().await.expect("migrated");
        store.close().await;
        Parts::open(&config).await.expect("parts")
    }

    /// Starts a front and a worker in this process, on a migrated database. Returns once the broker is connected.
    pub async fn running(&self) -> Running {
        self.running_as(Role::Both).await
    }

    pub async fn running_as(&self, role: Role) -> Running {
        self.parts().await;
        let running = Running::start(&self.config(), role).await.expect("starts");
        if role != Role::Worker {
            running.publisher_is_up(Duration::from_secs(60)).await.expect("the broker");
            // A newly declared stream may be slow, and the first buyer needs it.
            let publisher = running.parts.publisher.clone().expect("a front publishes");
            let log = OrderLog::with(self.config().queue(), publisher);
            until("the order log answers", Duration::from_secs(60), async || log.head().await.ok()).await;
        }
        running
    }
}

async fn private_database(server: &str, name: &str) -> String {
    use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
    let statement = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    if server.starts_with("postgres") {
        let mut connection = sqlx::PgConnection::connect(server).await.expect("PostgreSQL");
        connection.execute(statement).await.expect("a private database");
    } else {
        let mut connection = sqlx::MySqlConnection::connect(server).await.expect("MariaDB");
        connection.execute(statement).await.expect("a private database");
    }
    let (base, _) = server.rsplit_once('/').expect("a URL with a database");
    format!("{base}/{name}")
}

pub fn id<T: std::str::FromStr<Err = doorbuster::domain::Invalid>>(text: &str) -> T {
    text.parse().expect("a valid identifier")
}

/// A sale of one item, `unit`, whose window is open.
pub fn sale(name: &str, stock: i64, limit: u32) -> Sale {
    Sale {
        id: id(name),
        name: name.to_owned(),
        window: Window { opens_at: Millis(0), closes_at: None },
        limit_per_user: limit,
        terms: Terms::default(),
        items: vec![Item { sku: id("unit"), stock, limit_per_user: None }],
    }
}

/// The same attempt, made two hours ago by its id: the hour in which a user's ended orders count is over.
pub fn two_hours_ago(attempt: Attempt) -> Attempt {
    let seconds = Millis::now().0.unsigned_abs() / 1_000 - 7_200;
    let made = uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, 0));
    Attempt { id: id(&made.to_string()), ..attempt }
}

pub fn attempt(sale: &SaleId, user: &str, key: Option<&str>, quantity: u32) -> Attempt {
    let sku: Sku = id("unit");
    let key: Option<IdempotencyKey> = key.map(id);
    Attempt {
        id: OrderId::generate(),
        sale: sale.clone(),
        user: id::<UserId>(user),
        fingerprint: Fingerprint::of_body(&sku, quantity),
        sku,
        quantity,
        key: KeyDigest::of_key(key.as_ref()),
        keyed: key.is_some(),
    }
}

/// An accepted order, as the gate would write it.
pub fn order(sale: &SaleId, user: &str, seq: i64) -> Order {
    attempt(sale, user, Some(&format!("key-{seq}")), 1).admitted(
        Number { epoch: 1, seq },
        1,
        Millis(1_700_000_000_000),
    )
}

impl World {
    /// Opens a sale in gate and database.
    pub async fn open_sale(&self, parts: &Parts, sale: &Sale) {
        let control = doorbuster::control::Control::new(parts.gate.clone(), parts.store.clone());
        control.create(sale, &ActRequest::by("test")).await.expect("created");
        control.open(&sale.id, &ActRequest::by("test")).await.expect("opened");
    }

    /// Admits an order past the restart check, as if another front had already compared this Redis.
    pub async fn vouch_for_redis(&self, sale: &Sale) {
        let config = self.config();
        // The script's text names the installation, which this gate learns from Redis.
        config.installation.check();
        let gate = Gate::open(config.gate()).expect("a gate");
        let verdict = gate.admit(attempt(&sale.id, "voucher", Some("k"), 1)).await.expect("decided");
        assert!(matches!(verdict, doorbuster::domain::Verdict::Accepted(_)), "{verdict:?}");
    }

    /// Compares the books of this world's servers, as after a restart of Redis.
    pub async fn compare_books(&self, parts: &Parts) {
        let Parts { gate, store, leases, .. } = parts.clone();
        let compared = Comparison { gate, store, leases, queue: self.config().queue() }.run().await;
        compared.expect("compared");
    }

    /// Opens a sale in the gate alone.
    pub async fn load(&self, gate: &doorbuster::gate::Gate, sale: &Sale) {
        gate.load(sale, &Versions::default()).await.expect("loaded");
        gate.move_sale(&sale.id, SaleState::Open, &[SaleState::Draft]).await.expect("opened");
    }
}

/// Judges the attempts in one script call. Every verdict must be readable.
pub async fn verdicts(
    gate: &doorbuster::gate::Gate,
    sale: &SaleId,
    attempts: &[Attempt],
) -> Vec<doorbuster::domain::Verdict> {
    let verdicts = gate.admit_all(sale, attempts).await.expect("decided");
    verdicts.into_iter().map(|verdict| verdict.expect("readable")).collect()
}
