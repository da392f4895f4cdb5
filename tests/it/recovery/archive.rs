//! The end of a sale: it is closed and archived, and its orders are purged.

use std::time::Duration;

use doorbuster::audit::audit;
use doorbuster::control::{Control, ControlError};
use doorbuster::domain::{ActRequest, Millis, OrderStatus, Sale, SaleState, Terms, Verdict, Window};
use doorbuster::front::Role;
use doorbuster::process::Running;
use serde_json::json;

use crate::orders::control::{keyed, with_open_sale};
use crate::support::{Answer, Buyer, Database, World, at_rest, attempt, run, sale, until};

const LONG: Duration = Duration::from_secs(40);

/// A sale of three units at rest. Ada holds one of them.
async fn with_one_order(world: &World) -> (Running, Sale, Answer) {
    let running = world.running().await;
    let sale = sale(&world.name, 3, 1);
    world.open_sale(&running.parts, &sale).await;
    let order = Buyer::of(&running, "ada").buy(sale.id.as_str(), "k").await;
    assert_eq!(order.status, 202, "{}", order.text);
    at_rest(&running, &sale).await;
    (running, sale, order)
}

/// Whether a text has this name as a word. A pseudonym is random, and may have its letters.
fn names(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric()).any(|word| word == name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_is_checked_closed_archived_and_purged() {
    let world = World::new(Database::Postgres).await;
    let (running, sale, order) = with_one_order(&world).await;
    let (name, ada) = (sale.id.as_str(), Buyer::of(&running, "ada"));
    let cli = async |args: &[&str]| run(Some(&world), args).await;
    let (code, out, err) = cli(&["sale", "check", name]).await;
    assert!(code == 0 && out.contains("is ready") && out.contains("clocks"), "{out}{err}");
    let check = format!("/v1/admin/sales/{name}/check");
    let checked = Buyer::operator(&running, Role::Viewer).get(&check).await;
    assert_eq!(checked.json["ready"], true, "{}", checked.text);
    let (code, _, err) = cli(&["sale", "archive", name]).await;
    assert!(code == 1 && err.contains("a sale that is open cannot be archived"), "{err}");
    let (code, _, err) = cli(&["user", "erase", "ada"]).await;
    assert!(code == 2 && err.contains("--yes"), "{err}");
    assert_eq!(cli(&["sale", "close", name]).await.0, 0);
    for _ in 0..2 {
        let (code, out, err) = cli(&["sale", "archive", name]).await;
        assert!(code == 0 && out.contains("is archived"), "{out}{err}");
    }
    assert!(
        running.parts.gate.describe(&sale.id).await.unwrap().is_none(),
        "the gate no longer has the sale"
    );
    let closed = until("the front knows that the sale is closed", LONG, async || {
        Some(Buyer::of(&running, "bob").buy(name, "k").await).filter(|answer| answer.status == 410)
    })
    .await;
    assert_eq!(closed.code(), "sale_closed");
    let shown = Buyer::of(&running, "bob").get(&format!("/v1/sales/{name}")).await;
    let items = &shown.json["items"];
    assert_eq!((&shown.json["state"], &items[0]["availability"]), (&json!("archived"), &json!("gone")));
    let read = ada.get(&order.headers["location"]).await;
    assert_eq!(read.json["status"], "confirmed", "the order can still be read: {}", read.text);
    let books = audit(&running.parts.gate, &running.parts.store, &sale.id).await.unwrap();
    assert!(books.balances() && books.is_at_rest(), "{books:?}");
    let (code, out, _) =
        cli(&["user", "erase", "ada", "--yes", "--by", "grace", "--reason", "by letter of 3 May"]).await;
    assert!(code == 0 && out.contains("in 1 orders"), "{out}");
    let row = running.parts.store.order(order.order_id().parse().unwrap()).await.unwrap().expect("a row");
    assert!(row.order.user.as_str().starts_with("erased-"), "{row:?}");
    assert_eq!(row.status, OrderStatus::Confirmed);
    assert_eq!(ada.get(&order.headers["location"]).await.status, 404);
    let (code, out, _) = cli(&["user", "erase", "nobody", "--yes"]).await;
    assert!(code == 3 && out.contains("no sale knows nobody"), "{out}");
    let control = Control::new(running.parts.gate.clone(), running.parts.store.clone());
    let day = Duration::from_secs(86_400);
    assert_eq!(control.purge_old_sales(day).await.unwrap(), 0, "the sale is not old enough");
    let (code, out, err) = cli(&["sale", "purge", name, "--yes"]).await;
    assert!(code == 0 && out.contains("its orders are deleted"), "{out}{err}");
    let books = audit(&running.parts.gate, &running.parts.store, &sale.id).await.unwrap();
    assert!(books.balances() && books.live_orders == 0, "{books:?}");
    let again = control.create(&sale, &ActRequest::by("test")).await;
    assert!(matches!(again, Err(ControlError::Exists(_))), "its id cannot be used again: {again:?}");
    assert!(running.parts.store.order(order.order_id().parse().unwrap()).await.unwrap().is_none());

    // What was done, by whom and why; never the name that was erased.
    let (code, out, err) = cli(&["acts", "--output", "json"]).await;
    assert_eq!(code, 0, "{err}");
    assert!(!names(&out, "ada"), "{out}");
    let acts: serde_json::Value = serde_json::from_str(&out).unwrap();
    let kinds: Vec<&str> =
        acts["acts"].as_array().unwrap().iter().filter_map(|act| act["kind"].as_str()).collect();
    assert_eq!(
        kinds,
        ["create", "purge", "erase", "erase", "archive", "archive", "close", "archive", "open", "create"],
        "{out}"
    );
    let erase = &acts["acts"][3];
    assert_eq!(
        (&erase["by"], &erase["reason"]),
        (&json!("operator grace"), &json!("by letter of 3 May")),
        "{erase}"
    );
    assert!(erase["result"].as_str().unwrap().contains("in 1 orders"), "{erase}");
    assert!(acts["acts"][0]["result"].as_str().unwrap().starts_with("error: a sale"), "{out}");
    let (_, out, _) = cli(&["acts", "--limit", "1"]).await;
    assert!(out.lines().count() == 2 && out.contains("error: a sale"), "{out}");
    let viewer = Buyer::operator(&running, doorbuster::front::Role::Viewer);
    assert_eq!(viewer.get("/v1/admin/acts").await.json["acts"].as_array().unwrap().len(), kinds.len());
    running.stop().await;
}

/// A person need not wait, and nobody has to remember: the order may even have no row yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_erased_when_the_sale_that_ran_is_archived() {
    let world = World::new(Database::Sqlite).await;
    let (running, sale, order) = with_one_order(&world).await;
    let name = sale.id.as_str();
    let cli = async |args: &[&str]| run(Some(&world), args).await;
    let control = Control::new(running.parts.gate.clone(), running.parts.store.clone());
    let in_flight = running.parts.gate.admit(attempt(&sale.id, "carl", Some("k"), 1)).await.unwrap();
    assert!(matches!(in_flight, Verdict::Accepted(_)), "{in_flight:?}");
    for user in ["ada", "carl", "carl"] {
        let (code, out, err) = cli(&["user", "erase", user, "--yes"]).await;
        assert!(code == 3 && out.contains(name) && out.contains("within a minute"), "{user}: {out}{err}");
    }
    assert_eq!(control.finish_erasures().await.unwrap(), 0, "the sale is not archived");
    let (code, out, err) = cli(&["user", "erasures", "--output", "json"]).await;
    let listed: serde_json::Value =
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{code}: {out}{err}"));
    let users: Vec<&str> =
        listed["erasures"].as_array().unwrap().iter().filter_map(|row| row["user"].as_str()).collect();
    assert_eq!(users, ["ada", "carl"], "{out}");
    at_rest(&running, &sale).await;
    assert_eq!(cli(&["sale", "close", name]).await.0, 0);
    assert_eq!(cli(&["sale", "archive", name]).await.0, 0);
    // The leading front does this once a minute.
    control.finish_erasures().await.unwrap();
    assert_eq!(control.finish_erasures().await.unwrap(), 0, "it is done once");
    for row in running.parts.store.orders_after(&sale.id, None, 10).await.unwrap() {
        assert!(row.order.user.as_str().starts_with("erased-"), "{row:?}");
    }
    assert!(running.parts.store.order(order.order_id().parse().unwrap()).await.unwrap().is_some());
    let (code, out, _) = cli(&["user", "erasures"]).await;
    assert!(code == 0 && out.contains("no name waits"), "{out}");
    running.stop().await;
}

/// People write names into reasons.
#[tokio::test(flavor = "multi_thread")]
async fn an_erased_name_is_in_no_reason_either() {
    let world = World::new(Database::Sqlite).await;
    let (running, sale, order) = with_one_order(&world).await;
    let name = sale.id.as_str();
    let cli = async |args: &[&str]| run(Some(&world), args).await;
    let (code, out, err) = cli(&["order", "pay", name, order.order_id(), "--reason", "ada called us"]).await;
    assert_eq!(code, 0, "{out}{err}");
    at_rest(&running, &sale).await;
    let shown = async || cli(&["order", "show", name, order.order_id()]).await.1;
    let before = shown().await;
    assert!(before.contains("ada called us") && names(&before, "ada"), "{before}");
    assert_eq!(cli(&["sale", "close", name]).await.0, 0);
    let (code, out, err) = cli(&["sale", "archive", name]).await;
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = cli(&["user", "erase", "ada", "--yes"]).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("168 hours") && out.contains("exports and backups"), "{out}");
    let after = shown().await;
    assert!(after.contains("paid") && !names(&after, "ada"), "{after}");
    running.stop().await;
}

/// A unit that comes back after the sale was archived has no gate to return to, and the books must still balance.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_ends_after_its_sale_was_archived_is_settled() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("maintenance.every_ms=200");
    let (running, sale, order) = with_one_order(&world).await;
    let control = Control::new(running.parts.gate.clone(), running.parts.store.clone());
    control.close(&sale.id, &keyed("c")).await.unwrap();
    control.archive(&sale.id, &keyed("a")).await.unwrap();
    // Simulates a process that closes the sale at the same moment, before the gate unloads it.
    let row = running.parts.store.sale(&sale.id).await.unwrap().expect("a row");
    running.parts.store.set_sale_state(&sale.id, SaleState::Closed, row.number).await.unwrap();
    let cancel = format!("/v1/sales/{}/orders/{}:cancel", sale.id, order.order_id());
    let cancelled = Buyer::of(&running, "ada").post(&cancel, &[], "").await;
    assert_eq!(cancelled.json["status"], "cancelled", "{}", cancelled.text);
    at_rest(&running, &sale).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_an_hour_past_closing_is_closed_by_maintenance() {
    let (_world, parts, control, sale) = with_open_sale(5, 1, Terms::default()).await;
    let hours_ago = Millis(parts.gate.clock().await.unwrap().0 - 2 * 3_600_000);
    let over = Sale {
        window: Window { opens_at: Millis(0), closes_at: Some(hours_ago) },
        ..parts.store.sale(&sale.id).await.unwrap().expect("a row").sale
    };
    parts.gate.set_terms(&over, 9).await.unwrap();
    assert_eq!(control.close_expired_sales().await.unwrap(), 1);
    let status = control.show(&sale.id).await.unwrap();
    assert_eq!((status.state(), status.row.state), (SaleState::Closed, SaleState::Closed));
    assert_eq!(control.close_expired_sales().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_orders_of_an_archived_sale_are_purged_after_their_retention() {
    let world = World::new(Database::Sqlite).await;
    let (running, sale, order) = with_one_order(&world).await;
    let control = Control::new(running.parts.gate.clone(), running.parts.store.clone());
    assert_eq!(control.purge_old_sales(Duration::ZERO).await.unwrap(), 0, "the sale is not archived");
    control.close(&sale.id, &keyed("c")).await.unwrap();
    control.archive(&sale.id, &keyed("a")).await.unwrap();
    assert_eq!(control.purge_old_sales(Duration::ZERO).await.unwrap(), 1);
    assert!(running.parts.store.order(order.order_id().parse().unwrap()).await.unwrap().is_none());
    assert_eq!(control.purge_old_sales(Duration::ZERO).await.unwrap(), 0, "it is purged once");
    let acts = control.acts(&sale.id, 1).await.unwrap();
    assert_eq!((acts[0].kind.as_str(), acts[0].by.as_str()), ("purge", "schedule"));
    running.stop().await;
}
