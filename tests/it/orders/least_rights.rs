//! Fronts and workers whose users at the servers may do what docs/security.md says, and no more.

use std::time::Duration;

use doorbuster::audit::audit;
use doorbuster::domain::Sale;
use doorbuster::front::Signer;
use doorbuster::process::Parts;
use doorbuster::rehearsal::servers::{Ending, Kind, Server};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use sqlx::{Connection as _, Executor as _, MySqlConnection, PgConnection};

use crate::seams::queue::channel;
use crate::support::{
    Buyer, Database, Doorbuster, World, ask_redis, private_redis, request, run, sale, until,
};

const LONG: Duration = Duration::from_secs(60);
const PASSWORD: &str = "a-password-for-tests";

/// The command of a program in docs/security.md, for this world instead of the default prefix.
fn documented(program: &str, world: &World, user: &str) -> String {
    let document = include_str!("../../../docs/security.md");
    let line = document.lines().find_map(|line| line.strip_prefix(program)).expect("a line of the document");
    // The quotes are the shell's.
    line.trim()
        .replace('\'', "")
        .replace("shop.*", &format!("{}.*", world.name))
        .replace("shop", user)
        .replace("doorbuster", &world.name)
        .replace("PASSWORD", PASSWORD)
}

/// Creates the users, and returns the world as they see it.
async fn with_least_rights(world: &World, rabbitmq: &Server) -> World {
    let config = world.config();
    let user = format!("least_{}", world.name);
    let acl = documented("redis-cli", world, &user);
    let _ok: String = ask_redis(&config.redis.url, &acl).await;

    rabbitmq.control(&["add_user", &user, PASSWORD]).await.unwrap();
    let permissions = documented("rabbitmqctl", world, &user);
    rabbitmq.control(&permissions.split(' ').collect::<Vec<_>>()).await.unwrap();

    let mut direct = PgConnection::connect(&config.database.url).await.unwrap();
    let grants = documented("psql", world, &user);
    direct.execute(sqlx::AssertSqlSafe(format!("CREATE ROLE {user} LOGIN; {grants}"))).await.unwrap();

    let mut least = World::with(world.overrides.clone());
    least.name.clone_from(&world.name);
    let at = |url: &str| url.rsplit(['@', '/']).next().expect("an address").to_owned();
    least.set(&format!("redis.url=redis://{user}:{PASSWORD}@{}", at(&config.redis.url)));
    least.set(&format!("queue.url=amqp://{user}:{PASSWORD}@{}", at(&config.queue.url)));
    let (_, database) = config.database.url.split_once('@').expect("a user");
    least.set(&format!("database.url=postgres://{user}@{database}"));
    least
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_needs_no_more_rights_than_the_document_says() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(Database::Postgres).await;
    let redis = private_redis(&mut world, folder.path()).await;
    let rabbitmq = Server::start(Kind::Rabbitmq, folder.path()).await.expect("a private RabbitMQ");
    world.set(&format!("queue.url={}", rabbitmq.url));
    let (code, out, err) = run(Some(&world), &["migrate"]).await;
    assert!(code == 0 && err.is_empty(), "{code} {out}{err}");
    let parts = world.parts().await;
    let sale = sale(&world.name, 10, 1);
    world.open_sale(&parts, &sale).await;

    let least = with_least_rights(&world, &rabbitmq).await;
    refused(&least).await;
    let (code, out, err) = run(Some(&least), &["doctor"]).await;
    assert_eq!(code, 0, "{out}{err}");
    sells(&least, &parts, &sale).await;
    redis.stop(Ending::AtOnce).await;
    rabbitmq.stop(Ending::AtOnce).await;
}

/// Sells the ten units of the sale, and cancels one order.
async fn sells(least: &World, parts: &Parts, sale: &Sale) {
    let front = Doorbuster::start(least, "front").await;
    let _worker = Doorbuster::start(least, "worker").await;
    until("all servers answer", LONG, async || {
        let readiness = request(front.operations, "GET", "/readyz", &[], b"").await;
        (readiness.json["status"] == "ready").then_some(())
    })
    .await;
    let tokens = Signer::new(least.config().auth());
    let mut orders = Vec::new();
    for nth in 0..15 {
        let buyer = Buyer::with(front.buyers.expect("a front"), &tokens, &format!("user{nth}"), None);
        let answer = until("the servers answer", LONG, async || {
            buyer.try_buy(sale.id.as_str(), "k").await.filter(|answer| answer.status < 500)
        })
        .await;
        orders.push((buyer, answer));
    }
    let accepted: Vec<_> = orders.iter().filter(|(_, answer)| answer.status == 202).collect();
    assert_eq!(accepted.len(), 10);
    assert!(accepted.iter().all(|(_, answer)| answer.json["durability"] == "broker"));
    let (buyer, answer) = accepted[0];
    let cancelled = buyer.post(&format!("{}:cancel", answer.headers["location"]), &[], "").await;
    assert_eq!(cancelled.json["status"], "cancelled", "{}", cancelled.text);
    let books = until("every order has ended", LONG, async || {
        Some(audit(&parts.gate, &parts.store, &sale.id).await.unwrap()).filter(|books| books.is_at_rest())
    })
    .await;
    assert!(books.balances() && books.live_orders == 9, "{books:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_needs_no_more_rights_than_the_document_says() {
    let mut world = World::new(Database::Mariadb).await;
    let parts = world.parts().await;
    let sale = sale(&world.name, 10, 1);
    world.open_sale(&parts, &sale).await;

    let url = world.config().database.url;
    let user = format!("least_{}", world.name);
    let mut direct = MySqlConnection::connect(&url).await.unwrap();
    let create = format!("CREATE USER {user} IDENTIFIED BY '{PASSWORD}'");
    for statement in [create, documented("mariadb", &world, &user)] {
        direct.execute(sqlx::AssertSqlSafe(statement)).await.unwrap();
    }
    let (_, at) = url.split_once('@').expect("a user");
    let url = format!("mysql://{user}:{PASSWORD}@{at}");
    let mut session = MySqlConnection::connect(&url).await.unwrap();
    for statement in
        ["ALTER TABLE orders ADD COLUMN x int", "DROP TABLE orders", "CREATE TABLE other (x int)"]
    {
        let error = session.execute(statement).await.expect_err("refused").to_string();
        assert!(error.contains("denied"), "{statement}: {error}");
    }
    world.set(&format!("database.url={url}"));
    let (code, out, err) = run(Some(&world), &["doctor"]).await;
    assert_eq!(code, 0, "{out}{err}");
    sells(&world, &parts, &sale).await;
}

/// What these users must not do.
async fn refused(least: &World) {
    let config = least.config();
    let client = redis::Client::open(config.redis.url.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for command in [
        &["FLUSHALL"][..],
        &["CONFIG", "SET", "appendonly", "no"],
        &["SET", "elsewhere", "1"],
        &["SCRIPT", "FLUSH"],
        &["SCRIPT", "KILL"],
        &["FUNCTION", "FLUSH"],
        &["EVAL", "return 1", "0"],
        &["ACL", "LIST"],
        &["SHUTDOWN", "NOSAVE"],
    ] {
        let mut ask = redis::cmd(command[0]);
        command[1..].iter().for_each(|word| _ = ask.arg(*word));
        let answer: redis::RedisResult<redis::Value> = ask.query_async(&mut connection).await;
        let error = answer.expect_err("refused").to_string();
        assert!(error.to_uppercase().contains("PERM"), "{command:?}: {error}");
    }
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    let name = format!("{}.other", least.name);
    let declared =
        channel(least).await.queue_declare(name.as_str().into(), options, FieldTable::default()).await;
    assert!(declared.expect_err("refused").to_string().contains("ACCESS_REFUSED"));
    let mut session = PgConnection::connect(&config.database.url).await.unwrap();
    for statement in ["ALTER TABLE orders ADD COLUMN x int", "DROP TABLE orders", "TRUNCATE orders"] {
        let error = session.execute(statement).await.expect_err("refused").to_string();
        assert!(
            error.contains("permission denied") || error.contains("must be owner"),
            "{statement}: {error}"
        );
    }
}
