//! An order that the database refuses for a reason that may pass, while it answers.

use std::time::Duration;

use super::stalls::Session;
use crate::support::{Buyer, Database, Doorbuster, World, sale, until};

const LONG: Duration = Duration::from_secs(60);

/// The database refuses the order by an error of its own, which says nothing of the data. The worker tries it apart from the
/// others, and it gets its row once the database takes it.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_the_database_refuses_for_a_while_is_tried_apart_from_the_others() {
    let mut world = World::new(Database::Postgres).await;
    world.set("worker.lanes=1").set("worker.hold_ms=1000");
    let front = world.running_as(doorbuster::process::Role::Front).await;
    let sale = sale(&world.name, 20, 1);
    world.open_sale(&front.parts, &sale).await;
    let mut database = Session::open(&world).await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                    IF NEW.user_id = 'eve' THEN RAISE EXCEPTION 'not now' USING ERRCODE = 'ZZ001'; END IF; \
                    RETURN NEW; END $$";
    database.execute(refuse.into()).await;
    let on_orders = "CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()";
    database.execute(on_orders.into()).await;
    let worker = Doorbuster::start(&world, "worker").await;
    for user in ["eve", "ann", "bob"] {
        let answer = Buyer::of(&front, user).buy(sale.id.as_str(), "k").await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    }
    let live = async || front.parts.store.totals(&sale.id).await.unwrap().live_orders;
    until("the others have rows", LONG, async || (live().await == 2).then_some(())).await;
    until("it is tried apart from the others", LONG, async || {
        (worker.metric("doorbuster_worker_suspects_total").await > 0.0).then_some(())
    })
    .await;
    let answer = Buyer::of(&front, "carol").buy(sale.id.as_str(), "k").await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    until("a later order has its row", LONG, async || (live().await == 3).then_some(())).await;
    database.execute("DROP TRIGGER refuse ON orders".into()).await;
    until("it has its row", LONG, async || (live().await == 4).then_some(())).await;
    front.stop().await;
}
