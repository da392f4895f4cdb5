//! Limits that the database's server keeps, so that they hold when nobody is left to give up.

use std::time::Duration;

use doorbuster::process::Role;

use crate::support::{Buyer, Database, Doorbuster, World, sale, until};

use super::stalls::Session;

const LONG: Duration = Duration::from_secs(60);

/// A worker stops in the middle of a query, as if its host were gone; its connection stays open.
async fn a_query_of_a_lost_host_is_ended(database: Database, slowly: &[&str], runs: &str) {
    let mut world = World::new(database).await;
    world.set("database.timeout_ms=2000");
    let front = world.running_as(Role::Front).await;
    let sale = sale(&world.name, 9, 1);
    world.open_sale(&front.parts, &sale).await;
    let mut session = Session::open(&world).await;
    for statement in slowly {
        session.execute((*statement).into()).await;
    }
    let gone = Doorbuster::start(&world, "worker").await;
    assert_eq!(Buyer::of(&front, "ada").buy(sale.id.as_str(), "k").await.status, 202);
    until("it inserts", LONG, async || (session.numbers(runs.into()).await == [1]).then_some(())).await;
    let pid = gone.child.id().expect("it runs").to_string();
    assert!(std::process::Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    until("the server ends its query", LONG, async || {
        (session.numbers(runs.into()).await == [0]).then_some(())
    })
    .await;
    drop(gone);
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_of_a_lost_host_is_ended_by_postgres() {
    let slowly = [
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); RETURN NEW; END $$",
        "CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION slow()",
    ];
    let runs = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND state = 'active' AND wait_event = 'PgSleep'";
    a_query_of_a_lost_host_is_ended(Database::Postgres, &slowly, runs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_of_a_lost_host_is_ended_by_mariadb() {
    let slowly = ["CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW SET @slept = SLEEP(600)"];
    let runs = "SELECT count(*) FROM information_schema.processlist
                WHERE db = database() AND state = 'User sleep'";
    a_query_of_a_lost_host_is_ended(Database::Mariadb, &slowly, runs).await;
}
