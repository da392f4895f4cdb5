//! Two servers lose data at once, or one after the other, while everything runs.

use std::path::Path;
use std::time::Duration;

use doorbuster::domain::{Act, ActRequest, Millis, OrderId, OrderStatus, Sale, SaleState};
use doorbuster::front::Role as Right;
use doorbuster::process::{Role, Running};
use doorbuster::rehearsal::chaos::{Proxy, Weather};
use doorbuster::rehearsal::servers::{Ending, Kind, Server};
use doorbuster::store::{Payment, PaymentKind, PaymentState, StoreError};

use super::pages::{address, private_redis_behind, sell_out};
use super::repair::act;
use crate::support::{
    Backup, Buyer, Database, World, ask_redis, at_rest, buy, everything_is_witnessed, redis_second,
    roll_redis_back, run, sale, until,
};

const LONG: Duration = Duration::from_secs(60);

/// A front and a worker that run through everything, on a database with a backup.
struct Stage {
    world: World,
    running: Running,
    redis: Option<Server>,
    proxy: Proxy,
    sale: Sale,
    database: Backup,
    /// Paid before the backup, and after it.
    paid: [OrderId; 2],
    /// Cancelled after the backup.
    cancelled: OrderId,
}

impl Stage {
    async fn set(folder: &Path) -> Self {
        let mut world = World::new(Database::Postgres).await;
        world.set("maintenance.every_ms=100").set("worker.hold_ms=1000").set("gate.rebuild=manual");
        let (redis, proxy) = private_redis_behind(&mut world, folder).await;
        let running = world.running().await;
        let mut sale = sale(&world.name, 20, 1);
        sale.terms.pay_within_s = Some(3_600);
        world.open_sale(&running.parts, &sale).await;
        let orders = buy(&running, &sale, 0..4).await;
        at_rest(&running, &sale).await;
        act(&running.parts, &sale, orders[0], Act::Pay).await;
        everything_is_witnessed(&running, &sale).await;
        let database = Backup::of(&world);
        database.make().await;
        act(&running.parts, &sale, orders[1], Act::Pay).await;
        act(&running.parts, &sale, orders[2], Act::Cancel).await;
        buy(&running, &sale, 4..8).await;
        at_rest(&running, &sale).await;
        everything_is_witnessed(&running, &sale).await;
        let (paid, cancelled) = ([orders[0], orders[1]], orders[2]);
        Self { world, running, redis: Some(redis), proxy, sale, database, paid, cancelled }
    }

    /// Starts Redis again under the same address, with what is in its folder.
    async fn start_redis(&mut self, folder: &Path) {
        self.redis = Some(Server::start(Kind::Redis, folder).await.unwrap());
        self.proxy.point_to(vec![address(&self.redis.as_ref().expect("started").url)]);
        self.proxy.reset();
    }

    async fn stop_redis(&mut self) {
        self.redis.take().expect("running").stop(Ending::AtOnce).await;
    }

    async fn command(&self, arguments: &[&str]) -> (i32, String) {
        let (code, out, err) = run(Some(&self.world), arguments).await;
        println!("$ doorbuster {}\n{out}{err}", arguments.join(" "));
        (code, format!("{out}{err}"))
    }

    /// No reader gets a 404 or an empty list for an accepted order.
    async fn denies_nothing(&self) {
        for user in ["user0", "user3", "user6"] {
            let path = format!("/v1/sales/{}/orders/mine", self.sale.id);
            let mine = Buyer::of(&self.running, user).get(&path).await;
            assert!(mine.status == 503 || mine.json["orders"][0].is_object(), "{user}: {}", mine.text);
        }
        let path = format!("/v1/admin/sales/{}/orders/{}", self.sale.id, self.paid[1]);
        let seen = Buyer::operator(&self.running, Right::Viewer).get(&path).await;
        assert_ne!(seen.status, 404, "{}", seen.text);
    }

    /// Paid orders are paid, cancelled ones cancelled, and the sale sells the rest.
    async fn is_whole(&self) {
        let status = async |id| self.running.parts.store.order(id).await.unwrap().map(|row| row.status);
        for id in self.paid {
            assert_eq!(status(id).await, Some(OrderStatus::Paid));
        }
        assert_eq!(status(self.cancelled).await, Some(OrderStatus::Cancelled));
        sell_out(&self.running, &self.sale).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_was_emptied_and_the_database_restored() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::set(folder.path()).await;
    let id = stage.sale.id.to_string();
    stage.stop_redis().await;
    std::fs::remove_dir_all(folder.path().join("redis")).unwrap();
    stage.database.restore().await;
    stage.start_redis(folder.path()).await;
    until("the loss of the database is noticed", LONG, async || stage.running.parts.store.behind()).await;
    stage.denies_nothing().await;
    let eve = Buyer::of(&stage.running, "eve").buy(&id, "k").await;
    assert_eq!(eve.status, 503, "{}", eve.text);
    // The database comes first: a gate that is rebuilt from it now would sell units that are sold.
    let (code, said) = stage.command(&["rebuild", "--sale", &id, "--yes"]).await;
    assert!(code == 1 && said.contains("replay run log"), "{said}");
    let (code, said) = stage.command(&["replay", "run", "log", "--yes"]).await;
    assert!(said.contains("is up to date now"), "{code} {said}");
    let (code, said) = stage.command(&["rebuild", "--sale", &id, "--yes"]).await;
    assert_eq!(code, 0, "{said}");
    stage.denies_nothing().await;
    stage.is_whole().await;
    stage.stop_redis().await;
    stage.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_was_restored_and_redis_went_back_in_time_later() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::set(folder.path()).await;
    let id = stage.sale.id.to_string();
    stage.database.restore().await;
    until("the loss of the database is noticed", LONG, async || stage.running.parts.store.behind()).await;
    let second = redis_second(&stage.running.parts.gate).await;
    // Accepted while the database is behind, and then forgotten by Redis.
    buy(&stage.running, &stage.sale, 8..10).await;
    stage.stop_redis().await;
    roll_redis_back(folder.path(), second);
    stage.start_redis(folder.path()).await;
    stage.denies_nothing().await;
    let (code, said) = stage.command(&["replay", "run", "log", "--yes"]).await;
    assert!(said.contains("is up to date now"), "{code} {said}");
    until("what Redis lost is noticed", LONG, async || {
        let gate = stage.running.parts.gate.describe(&stage.sale.id).await.ok()??;
        (gate.state == SaleState::Frozen).then_some(())
    })
    .await;
    let (code, said) = stage.command(&["rebuild", "--sale", &id, "--yes"]).await;
    assert_eq!(code, 0, "{said}");
    stage.is_whole().await;
    stage.stop_redis().await;
    stage.running.stop().await;
}

/// Redis emptied and the database restored while nothing ran: nobody is left who remembers the place of the database.
struct Forgotten {
    world: World,
    redis: Server,
    sale: Sale,
    /// Paid after the backup, which is the only commit that is lost: two of a new process would bring the database past
    /// it.
    paid: OrderId,
    _proxy: Proxy,
}

impl Forgotten {
    /// Redis was emptied by a restart without its files, or by somebody; then it still knows its scripts, and passes for
    /// one that was compared.
    async fn set(folder: &Path, restarts: bool) -> Self {
        Self::set_back(folder, restarts, SaleState::Open).await
    }

    /// The same with a backup from when the sale was in this state.
    async fn set_back(folder: &Path, restarts: bool, state: SaleState) -> Self {
        let mut world = World::new(Database::Postgres).await;
        world.set("maintenance.every_ms=100").set("gate.rebuild=manual");
        let (redis, proxy) = private_redis_behind(&mut world, folder).await;
        let running = world.running().await;
        let mut sale = sale(&world.name, 20, 1);
        sale.terms.pay_within_s = Some(3_600);
        let (control, by, database) = (&running.control, ActRequest::by("ada"), Backup::of(&world));
        control.create(&sale, &by).await.unwrap();
        if state == SaleState::Draft {
            until("a front has recorded how far the log is", LONG, async || {
                running.parts.store.replay_from().await.ok()?
            })
            .await;
            database.make().await;
        }
        control.open(&sale.id, &by).await.unwrap();
        let orders = buy(&running, &sale, 0..3).await;
        at_rest(&running, &sale).await;
        everything_is_witnessed(&running, &sale).await;
        if state == SaleState::Open {
            database.make().await;
        }
        act(&running.parts, &sale, orders[0], Act::Pay).await;
        everything_is_witnessed(&running, &sale).await;
        running.stop().await;
        let redis = if restarts {
            redis.stop(Ending::AtOnce).await;
            std::fs::remove_dir_all(folder.join("redis")).unwrap();
            let redis = Server::start(Kind::Redis, folder).await.unwrap();
            proxy.point_to(vec![address(&redis.url)]);
            redis
        } else {
            let _: String = ask_redis(&redis.url, "FLUSHALL").await;
            redis
        };
        // In what comes back, every deadline has passed.
        database.execute("UPDATE orders SET pay_by_ms = 1").await;
        database.restore().await;
        Self { world, redis, sale, paid: orders[0], _proxy: proxy }
    }

    /// Follows the documents, and sells the rest.
    async fn recover(self, running: Running) {
        let (code, out, err) = run(Some(&self.world), &["replay", "run", "log", "--yes"]).await;
        assert!(code == 0 && out.contains("is up to date now"), "{code} {out}{err}");
        let rebuild = ["rebuild", "--sale", self.sale.id.as_str(), "--yes"];
        let (code, out, err) = run(Some(&self.world), &rebuild).await;
        assert_eq!(code, 0, "{out}{err}");
        let row = running.parts.store.order(self.paid).await.unwrap().expect("a row");
        assert_eq!(row.status, OrderStatus::Paid);
        sell_out(&running, &self.sale).await;
        running.stop().await;
        self.redis.stop(Ending::AtOnce).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_notices_that_redis_and_the_database_have_both_lost_commits() {
    let folder = tempfile::tempdir().unwrap();
    let lost = Forgotten::set(folder.path(), false).await;
    let (code, out, err) =
        run(Some(&lost.world), &["rebuild", "--sale", lost.sale.id.as_str(), "--yes"]).await;
    assert!(code == 1 && err.contains("went back in time"), "{code} {out}{err}");
    let running = Running::start(&lost.world.config(), Role::Both).await.unwrap();
    lost.recover(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_front_notices_that_redis_and_the_database_have_both_lost_commits() {
    let folder = tempfile::tempdir().unwrap();
    let lost = Forgotten::set(folder.path(), true).await;
    let running = Running::start(&lost.world.config(), Role::Both).await.unwrap();
    until("the loss of the database is noticed", LONG, async || running.parts.store.behind()).await;
    let mine = format!("/v1/sales/{}/orders/mine", lost.sale.id);
    let mine = Buyer::of(&running, "user0").get(&mine).await;
    assert_eq!((mine.status, mine.code()), (503, "status_unavailable"), "{}", mine.text);
    lost.recover(running).await;
}

/// As with a backup of last night, and a sale that was opened at noon: no row says that anything was ever sold.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_front_notices_that_a_backup_is_older_than_the_opening_of_the_sale() {
    let folder = tempfile::tempdir().unwrap();
    let lost = Forgotten::set_back(folder.path(), true, SaleState::Draft).await;
    let running = Running::start(&lost.world.config(), Role::Both).await.unwrap();
    until("the loss of the database is noticed", LONG, async || running.parts.store.behind()).await;
    let order = format!("/v1/sales/{}/orders/{}", lost.sale.id, lost.paid);
    let order = Buyer::of(&running, "user0").get(&order).await;
    assert_eq!((order.status, order.code()), (503, "status_unavailable"), "{}", order.text);
    let (code, out, err) = run(Some(&lost.world), &["audit", "--all"]).await;
    assert!(code == 4 && err.contains("went back in time"), "{code} {out}{err}");
    lost.recover(running).await;
}

/// A rack restarts: the database comes back without its last commit, and Redis, which knows of it, later.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_has_not_heard_redis_yet_commits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let stage = Stage::set(folder.path()).await;
    everything_is_witnessed(&stage.running, &stage.sale).await;
    stage.running.stop().await;
    stage.database.restore().await;
    stage.proxy.set(Weather::Down);
    let running = Running::start(&stage.world.config(), Role::Front).await.unwrap();
    // Each would advance the place of the database, past the one that it has lost.
    for event in 0..4 {
        let payment = Payment {
            provider: "acme".into(),
            event_id: format!("evt{event}"),
            kind: PaymentKind::Paid,
            sale: stage.sale.id.clone(),
            order: stage.cancelled,
            user: None,
            state: PaymentState::Pending,
            new_order: None,
            detail: None,
            received_at: Millis::now(),
        };
        let refused = running.parts.store.receive_payment(&payment).await;
        assert!(matches!(refused, Err(StoreError::Away(_))), "{refused:?}");
    }
    stage.proxy.set(Weather::Fair);
    until("the loss of the database is noticed", LONG, async || running.parts.store.behind()).await;
    running.stop().await;
    stage.redis.expect("a redis").stop(Ending::AtOnce).await;
}
