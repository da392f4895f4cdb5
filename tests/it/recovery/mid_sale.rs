//! A server loses data in the middle of a sale. Nobody stops anything: a crowd buys, reads, pays and cancels before the
//! loss, during it and after it, and every answer is judged (see [`Crowd`]). Each test prints how long it took until a
//! new buyer was answered `accepted` again, and until the books were exact.

use std::path::Path;
use std::time::Duration;

use doorbuster::domain::{Number, Sale};
use doorbuster::process::{Role, Running};
use doorbuster::rehearsal::chaos::Proxy;
use doorbuster::rehearsal::servers::{Ending, Kind, Server};
use tokio::time::Instant;

use super::pages::{address, private_redis_behind};
use crate::support::{
    Backup, Crowd, Database, PAYMENT_SECRETS, World, ask_redis, at_rest, behind_proxy, redis_second,
    roll_redis_back, run, sale, until,
};

pub const LONG: Duration = Duration::from_secs(120);

/// How often a crowd buys before and after a loss, and how often in what is lost.
pub const SOME: usize = 40;

/// A sale with a crowd.
pub struct MidSale {
    pub world: World,
    pub running: Running,
    /// A worker of its own, if `running` is a front alone.
    pub worker: Option<Running>,
    pub sale: Sale,
    pub crowd: Crowd,
}

impl MidSale {
    /// Returns once the crowd has bought, read, paid and cancelled.
    pub async fn begin(world: World) -> Self {
        Self::begin_as(world, Role::Both).await
    }

    /// The same with a front and a worker of its own.
    pub async fn begin_with_worker(world: World) -> Self {
        Self::begin_as(world, Role::Front).await
    }

    async fn begin_as(mut world: World, role: Role) -> Self {
        world.set("maintenance.every_ms=200").set(PAYMENT_SECRETS);
        let running = world.running_as(role).await;
        let worker = match role {
            Role::Front => Some(Running::start(&world.config(), Role::Worker).await.unwrap()),
            _ => None,
        };
        let mut sale = sale(&world.name, 100_000, 1);
        sale.terms.pay_within_s = Some(3_600);
        world.open_sale(&running.parts, &sale).await;
        let crowd = Crowd::start(&running, &sale);
        crowd.goes_on(SOME).await;
        Self { world, running, worker, sale, crowd }
    }

    pub async fn command(&self, arguments: &[&str]) -> (i32, String) {
        let (code, out, err) = run(Some(&self.world), arguments).await;
        println!("$ doorbuster {}\n{out}{err}", arguments.join(" "));
        (code, format!("{out}{err}"))
    }

    /// Brings a database that went back in time up to date.
    pub async fn replay_the_log(&self) {
        let (code, said) = self.command(&["replay", "run", "log", "--yes"]).await;
        assert!(code == 0 && said.contains("is up to date now"), "{code} {said}");
    }

    pub async fn stop_worker(&mut self) {
        self.worker.take().expect("a worker of its own").stop().await;
    }

    pub async fn start_worker(&mut self) {
        self.worker = Some(Running::start(&self.world.config(), Role::Worker).await.unwrap());
    }

    /// The gate's number before a loss.
    pub async fn number(&self) -> Number {
        self.running.parts.gate.describe(&self.sale.id).await.unwrap().expect("loaded").number
    }

    /// Waits until a front has rebuilt the gate by itself.
    pub async fn is_rebuilt(&self, before: Number) {
        until("a front has rebuilt the gate", LONG, async || {
            let gate = self.running.parts.gate.describe(&self.sale.id).await.ok()??;
            (gate.number.epoch > before.epoch).then_some(())
        })
        .await;
    }

    pub async fn is_behind(&self) {
        until("the loss of the database is noticed", LONG, async || self.running.parts.store.behind()).await;
    }

    /// Puts a database back in time, with nothing stopped: not even cancellations, which are answered when the order log has
    /// them, as payments are. All who have paid or cancelled would have missed their time to pay, as far as the backup knows.
    pub async fn restore(&self, backup: &Backup) {
        let users: Vec<String> =
            self.crowd.have_acted().into_iter().map(|user| format!("'{user}'")).collect();
        let overdue = format!(
            "UPDATE orders SET pay_by_ms = 1 WHERE pay_by_ms IS NOT NULL AND user_id IN ({})",
            users.join(", ")
        );
        backup.execute(&overdue).await;
        self.crowd.through_a_loss(backup.restore()).await;
    }

    /// The crowd goes on for a while and leaves. Then the books are exact, every order can be read, in the state that
    /// its buyer asked for, and every paid one is paid.
    pub async fn ends_well(mut self, what: &str, fault: Instant) {
        self.crowd.goes_on(SOME).await;
        let sold_again = self.crowd.sold_again(fault).as_secs_f64();
        let stopped = fault.elapsed().as_secs_f64();
        self.crowd.stop().await;
        let books = at_rest(&self.running, &self.sale).await;
        let exact = fault.elapsed().as_secs_f64();
        println!(
            "{what}: sold again after {sold_again:.1} s; the crowd left after {stopped:.1} s, the books were exact after {exact:.1} s"
        );
        let (live, unknown) = self.crowd.ended_well().await;
        assert_eq!(books.failed_orders, 0, "{books:?}");
        assert!((live..=live + unknown).contains(&books.live_orders), "{live} and {unknown}: {books:?}");
        let (code, said) = self.command(&["audit", "--all"]).await;
        assert_eq!(code, 0, "{said}");
        if let Some(worker) = self.worker {
            worker.stop().await;
        }
        self.running.stop().await;
    }
}

/// Tests that run a scenario on a database: the first ones always, the others with `make test-mid-sale`, because together
/// they take minutes.
macro_rules! on_databases {
    ($(async fn $always:ident() = $scenario:ident($database:ident);)+
        #[ignore = $why:literal] $(async fn $on_demand:ident() = $same:ident($other:ident);)+) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $always() {
                $scenario(Database::$database).await;
            }
        )+
        $(
            #[tokio::test(flavor = "multi_thread")]
            #[ignore = $why]
            async fn $on_demand() {
                $same(Database::$other).await;
            }
        )+
    };
}
pub(super) use on_databases;

/// Starts a server again under the same address, with what is in its folder.
pub async fn start_again(kind: Kind, folder: &Path, proxy: &Proxy) -> Server {
    let server = Server::start(kind, folder).await.unwrap();
    proxy.point_to(vec![address(&server.url)]);
    proxy.reset();
    server
}

/// Starts a server again without its data.
pub async fn start_empty(kind: Kind, folder: &Path, proxy: &Proxy) -> Server {
    std::fs::remove_dir_all(folder.join(kind.name())).unwrap();
    start_again(kind, folder, proxy).await
}

async fn the_broker_is_wiped(database: Database) {
    let mut world = World::new(database).await;
    let folder = tempfile::tempdir().unwrap();
    let broker = Server::start(Kind::Rabbitmq, folder.path()).await.unwrap();
    world.set(&format!("queue.url={}", broker.url));
    let proxy = behind_proxy(&mut world, "queue.url").await;
    let stage = MidSale::begin(world).await;
    let fault = Instant::now();
    broker.stop(Ending::AtOnce).await;
    let broker = start_empty(Kind::Rabbitmq, folder.path(), &proxy).await;
    stage.running.publisher_is_up(LONG).await.unwrap();
    let (code, said) = stage.command(&["replay", "run", "outbox", "--yes"]).await;
    assert_eq!(code, 0, "{said}");
    stage.ends_well(&format!("the broker was wiped ({database:?})"), fault).await;
    broker.stop(Ending::AtOnce).await;
}

async fn redis_is_emptied(database: Database) {
    let mut world = World::new(database).await;
    let folder = tempfile::tempdir().unwrap();
    let (redis, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let stage = MidSale::begin(world).await;
    let fault = Instant::now();
    redis.stop(Ending::AtOnce).await;
    let redis = start_empty(Kind::Redis, folder.path(), &proxy).await;
    let (code, said) = stage.command(&["audit", "--sale", stage.sale.id.as_str()]).await;
    assert!(code == 4 && said.contains("IS NOT IN REDIS"), "{code} {said}");
    let (code, said) = stage.command(&["rebuild", "--sale", stage.sale.id.as_str(), "--yes"]).await;
    assert_eq!(code, 0, "{said}");
    stage.ends_well(&format!("redis was emptied ({database:?})"), fault).await;
    redis.stop(Ending::AtOnce).await;
}

/// Redis has forgotten orders, and it has entries of others that were in flight for a moment without a worker and were
/// confirmed, paid and cancelled since.
async fn redis_loses_its_last_writes(database: Database) {
    let mut world = World::new(database).await;
    let folder = tempfile::tempdir().unwrap();
    let (redis, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let mut stage = MidSale::begin_with_worker(world).await;
    stage.stop_worker().await;
    stage.crowd.buys(SOME).await;
    let second = redis_second(&stage.running.parts.gate).await;
    stage.start_worker().await;
    stage.crowd.goes_on(SOME).await;
    let before = stage.number().await;
    let fault = Instant::now();
    redis.stop(Ending::AtOnce).await;
    roll_redis_back(folder.path(), second);
    let redis = start_again(Kind::Redis, folder.path(), &proxy).await;
    stage.is_rebuilt(before).await;
    stage.ends_well(&format!("the append-only file was cut ({database:?})"), fault).await;
    redis.stop(Ending::AtOnce).await;
}

/// The replica lacks the same writes.
async fn a_stale_replica_of_redis_is_promoted(database: Database) {
    let mut world = World::new(database).await;
    let (folder, other_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (master, proxy) = private_redis_behind(&mut world, folder.path()).await;
    let mut stage = MidSale::begin_with_worker(world).await;
    let replica = Server::start(Kind::Redis, other_folder.path()).await.unwrap();
    let at = address(&master.url);
    let _: String = ask_redis(&replica.url, &format!("REPLICAOF {} {}", at.ip(), at.port())).await;
    until("the replica follows", LONG, async || {
        let said: String = ask_redis(&replica.url, "INFO replication").await;
        said.contains("master_link_status:up").then_some(())
    })
    .await;
    stage.stop_worker().await;
    stage.crowd.buys(SOME).await;
    let _: String = ask_redis(&replica.url, "REPLICAOF NO ONE").await;
    stage.start_worker().await;
    stage.crowd.goes_on(SOME).await;
    let before = stage.number().await;
    let fault = Instant::now();
    proxy.point_to(vec![address(&replica.url)]);
    proxy.reset();
    stage.is_rebuilt(before).await;
    stage.ends_well(&format!("a stale replica was promoted ({database:?})"), fault).await;
    master.stop(Ending::AtOnce).await;
    replica.stop(Ending::AtOnce).await;
}

/// Whether the connections are cut or not: from the moment of the loss on, no read shows an older state.
async fn the_database_is_restored(stage: MidSale, backup: Backup, how: &str) {
    backup.make().await;
    stage.crowd.goes_on(SOME).await;
    let fault = Instant::now();
    stage.restore(&backup).await;
    stage.is_behind().await;
    println!("noticed after {:.1} s", fault.elapsed().as_secs_f64());
    // The front sells on.
    stage.crowd.buys(SOME).await;
    stage.replay_the_log().await;
    stage.ends_well(&format!("the database was restored ({how})"), fault).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_database_is_restored_in_mid_sale() {
    let stage = MidSale::begin(World::new(Database::Postgres).await).await;
    let backup = Backup::of(&stage.world);
    the_database_is_restored(stage, backup, "PostgreSQL, replaced").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_is_loaded_into_postgres_in_mid_sale() {
    let stage = MidSale::begin(World::new(Database::Postgres).await).await;
    let backup = Backup::as_dump_of(&stage.world);
    the_database_is_restored(stage, backup, "PostgreSQL, a dump").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_is_loaded_into_mariadb_in_mid_sale() {
    let stage = MidSale::begin(World::new(Database::Mariadb).await).await;
    let backup = Backup::of(&stage.world);
    the_database_is_restored(stage, backup, "MariaDB, a dump").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sqlite_database_is_restored_in_mid_sale() {
    let stage = MidSale::begin(World::new(Database::Sqlite).await).await;
    let backup = Backup::of(&stage.world);
    the_database_is_restored(stage, backup, "SQLite").await;
}

on_databases! {
    async fn the_broker_is_wiped_in_mid_sale() = the_broker_is_wiped(Mariadb);
    async fn redis_is_emptied_in_mid_sale() = redis_is_emptied(Sqlite);
    async fn redis_loses_its_last_writes_in_mid_sale() = redis_loses_its_last_writes(Postgres);
    async fn a_stale_replica_of_redis_is_promoted_in_mid_sale() = a_stale_replica_of_redis_is_promoted(Mariadb);
    #[ignore = "make test-mid-sale"]
    async fn the_broker_is_wiped_on_postgres() = the_broker_is_wiped(Postgres);
    async fn the_broker_is_wiped_on_sqlite() = the_broker_is_wiped(Sqlite);
    async fn redis_is_emptied_on_postgres() = redis_is_emptied(Postgres);
    async fn redis_is_emptied_on_mariadb() = redis_is_emptied(Mariadb);
    async fn redis_loses_its_last_writes_on_mariadb() = redis_loses_its_last_writes(Mariadb);
    async fn redis_loses_its_last_writes_on_sqlite() = redis_loses_its_last_writes(Sqlite);
    async fn a_stale_replica_of_redis_is_promoted_on_postgres() = a_stale_replica_of_redis_is_promoted(Postgres);
    async fn a_stale_replica_of_redis_is_promoted_on_sqlite() = a_stale_replica_of_redis_is_promoted(Sqlite);
}
