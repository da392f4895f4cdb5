//! A database is put back in time under open connections, as by a dump that is loaded, and nothing writes to it. Between two
//! comparisons of the places, no front passes on an older state of an order than another process has answered.

use std::time::Duration;

use doorbuster::domain::{Act, ActRequest, Sale};
use doorbuster::front::Role as Right;
use doorbuster::orders::Orders;
use doorbuster::process::{Role, Running};
use serde_json::Value;
use tokio::time::Instant;

use crate::support::{Answer, Backup, Buyer, Database, World, at_rest, buy, everything_is_witnessed, sale};

/// Two comparisons are this far apart.
const BETWEEN_COMPARISONS: Duration = Duration::from_millis(1_200);

/// The states of the orders that an answer shows. There are none in a 503 with the right code.
fn states(answer: &Answer) -> Vec<String> {
    if answer.status == 503 {
        assert!(["status_unavailable", "database_behind"].contains(&answer.code()), "{}", answer.text);
        return Vec::new();
    }
    assert_eq!(answer.status, 200, "{}", answer.text);
    let status = |order: &Value| order["status"].as_str().expect("a status").to_owned();
    match answer.json["orders"].as_array() {
        Some(orders) => orders.iter().map(status).collect(),
        None => vec![status(&answer.json)],
    }
}

/// What shows the state of an order.
#[derive(Debug, Clone, Copy)]
enum Ask {
    Order,
    Mine,
    SameClick,
    AsOperator,
    List,
}

const EVERYTHING: [Ask; 5] = [Ask::Order, Ask::Mine, Ask::SameClick, Ask::AsOperator, Ask::List];

impl Ask {
    async fn of(self, front: &Running, sale: &Sale, order: &str) -> Answer {
        let buyer = Buyer::of(front, "user0");
        let operator = Buyer::operator(front, Right::Viewer);
        let (buyers, operators) = (format!("/v1/sales/{}", sale.id), format!("/v1/admin/sales/{}", sale.id));
        match self {
            Self::Order => buyer.get(&format!("{buyers}/orders/{order}")).await,
            Self::Mine => buyer.get(&format!("{buyers}/orders/mine")).await,
            Self::SameClick => buyer.buy(sale.id.as_str(), "k").await,
            Self::AsOperator => operator.get(&format!("{operators}/orders/{order}")).await,
            Self::List => operator.get(&format!("{operators}/orders")).await,
        }
    }
}

async fn no_older_state_is_passed_on(database: Database) {
    let mut world = World::new(database).await;
    world.set("database.connections=4");
    let worker = world.running_as(Role::Worker).await;
    // A front for each, because the first that notices makes the whole process aware of it.
    let mut fronts = Vec::new();
    for ask in EVERYTHING {
        fronts.push((ask, Running::start(&world.config(), Role::Front).await.unwrap()));
    }
    let sale = sale(&world.name, 30, 1);
    world.open_sale(&worker.parts, &sale).await;
    buy(&fronts[0].1, &sale, 0..1).await;
    at_rest(&worker, &sale).await;
    everything_is_witnessed(&worker, &sale).await;
    let backup = Backup::of(&world);
    backup.make().await;
    worker.stop().await;
    // Another process than the fronts has the order paid. Once that is answered, the gate has witnessed it; the fronts have
    // not compared since.
    let parts = world.parts().await;
    let row = parts.store.orders_after(&sale.id, None, 1).await.unwrap().remove(0);
    let order = row.order.id.to_string();
    let orders = Orders::new(parts.gate.clone(), parts.store.clone(), parts.leases.clone());
    orders.act(&sale.id, row.order.id, Act::Pay, &ActRequest::by("operator ada")).await.unwrap();
    backup.restore().await;
    let restored = Instant::now();
    while restored.elapsed() < BETWEEN_COMPARISONS {
        for (ask, front) in &fronts {
            let answer = ask.of(front, &sale, &order).await;
            assert!(states(&answer).iter().all(|state| state == "paid"), "{ask:?}: {}", answer.text);
        }
    }
    for (_, front) in fronts {
        front.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_older_state_is_passed_on_from_a_sqlite_database_that_was_put_back() {
    no_older_state_is_passed_on(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_older_state_is_passed_on_from_a_mariadb_database_that_was_put_back() {
    no_older_state_is_passed_on(Database::Mariadb).await;
}
