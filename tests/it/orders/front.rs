//! The buyers' HTTP contract and the admin API, over a real socket.

use std::time::Duration;

use doorbuster::domain::Millis;
use doorbuster::front::Role as OperatorRole;
use doorbuster::process::{Role, Running};

use crate::support::{Buyer, Database, World, request, sale, until};

/// A running front and worker with an open sale, whose id is returned.
async fn with_open_sale(stock: i64, limit: u32) -> (World, Running, String) {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let sale = sale(&world.name, stock, limit);
    world.open_sale(&running.parts, &sale).await;
    let id = sale.id.to_string();
    (world, running, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_accepted_then_confirmed_and_its_buyer_can_read_it() {
    let (_world, running, sale) = with_open_sale(2, 1).await;
    let ada = Buyer::of(&running, "ada");
    let accepted = ada.buy(&sale, "k").await;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    assert_eq!(accepted.json["status"], "accepted");
    assert_eq!(accepted.json["durability"], "broker");
    assert_eq!(accepted.json["quantity"], 1);
    assert_eq!(accepted.json["sku"], "unit");
    let location = accepted.headers["location"].clone();
    assert_eq!(location, format!("/v1/sales/{sale}/orders/{}", accepted.order_id()));

    let confirmed = ada.get(&format!("{location}?wait=10")).await;
    assert_eq!((confirmed.status, confirmed.json["status"].as_str()), (200, Some("confirmed")));
    assert_eq!(confirmed.json["history"][0]["status"], "accepted");
    assert_eq!(confirmed.json["history"][1]["status"], "confirmed");
    assert_eq!(confirmed.json["accepted_at"], accepted.json["accepted_at"]);

    let repeat = ada.buy(&sale, "k").await;
    assert_eq!((repeat.status, repeat.order_id()), (200, accepted.order_id()));
    assert_eq!(repeat.headers["idempotent-replayed"], "true");
    let mine = ada.get(&format!("/v1/sales/{sale}/orders/mine")).await;
    assert_eq!(mine.json["orders"][0]["order_id"], accepted.order_id());
    let hidden = Buyer::of(&running, "bob").get(&location).await;
    assert_eq!((hidden.status, hidden.code()), (404, "order_not_found"));
    let of_sale = ada.get(&format!("/v1/sales/{sale}")).await;
    let operator = Buyer::operator(&running, OperatorRole::Viewer);
    let orders = operator.get(&format!("/v1/admin/sales/{sale}/orders")).await;
    for answer in [accepted, confirmed, repeat, mine, hidden, of_sale, orders] {
        assert_eq!(answer.headers["cache-control"], "no-store", "{}", answer.text);
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prefer_wait_answers_201_once_the_row_exists() {
    let (_world, running, sale) = with_open_sale(1, 1).await;
    let path = format!("/v1/sales/{sale}/orders");
    let ada = Buyer::of(&running, "ada");
    let answer =
        ada.post(&path, &[("prefer", "respond-async, wait=10")], r#"{"sku":"unit","quantity":1}"#).await;
    assert_eq!((answer.status, answer.json["status"].as_str()), (201, Some("confirmed")), "{}", answer.text);
    let sold_out = Buyer::of(&running, "bob").post(&path, &[], "").await;
    assert_eq!((sold_out.status, sold_out.code()), (409, "sold_out"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refusal_has_its_code() {
    let (world, running, sale) = with_open_sale(100, 3).await;
    let path = format!("/v1/sales/{sale}/orders");
    let ada = Buyer::of(&running, "ada");
    let keyed = |key: &'static str| [("idempotency-key", key)];
    let missing = ada.post(&path, &[], "").await;
    assert_eq!((missing.status, missing.code()), (400, "idempotency_key_required"));
    for (body, status, code) in [
        (r#"{"quantity":0}"#, 422, "invalid_quantity"),
        (r#"{"quantity":-1}"#, 422, "invalid_quantity"),
        (r#"{"quantity":1.5}"#, 422, "invalid_quantity"),
        (r#"{"quantity":4}"#, 422, "invalid_quantity"),
        (r#"{"quantity":99999999999999999999}"#, 422, "invalid_quantity"),
        (r#"{"sku":"other"}"#, 422, "unknown_sku"),
        (r#"{"sku":"NOT A SLUG"}"#, 422, "unknown_sku"),
        (r#"{"quantity":"1"}"#, 400, "malformed"),
        (r#"{"sku":7}"#, 400, "malformed"),
        (r#"{"qty":1}"#, 400, "malformed"),
        ("{", 400, "malformed"),
        ("[]", 400, "malformed"),
    ] {
        let answer = ada.post(&path, &keyed("k"), body).await;
        assert_eq!((answer.status, answer.code()), (status, code), "{body}: {}", answer.text);
        assert_eq!(answer.headers["content-type"], "application/problem+json");
        assert_eq!(answer.json["status"], status);
        assert!(
            answer.json["detail"].is_string()
                && answer.json["title"].is_string()
                && answer.json["retryable"].is_boolean()
        );
        assert_eq!(answer.json["type"], format!("urn:doorbuster:problem:{code}"));
        assert_eq!(answer.json["request_id"], answer.headers["x-request-id"].as_str());
    }
    assert_eq!(ada.post(&path, &keyed("k"), r#"{"quantity":2}"#).await.status, 202);
    let reused = ada.post(&path, &keyed("k"), r#"{"quantity":1}"#).await;
    assert_eq!((reused.status, reused.code()), (422, "idempotency_key_reused"));
    let limit = ada.post(&path, &keyed("l"), r#"{"quantity":2}"#).await;
    assert_eq!((limit.status, limit.code()), (409, "purchase_limit"));
    let nowhere = ada.post("/v1/sales/nowhere/orders", &keyed("k"), "").await;
    assert_eq!((nowhere.status, nowhere.code()), (404, "sale_not_found"));
    let draft = crate::support::sale(&format!("{}draft", world.name), 1, 1);
    running.parts.store.create_sale(&draft).await.unwrap();
    for answer in [
        ada.post(&format!("/v1/sales/{}/orders", draft.id), &[], "").await,
        ada.get(&format!("/v1/sales/{}/orders/mine", draft.id)).await,
        ada.get(&format!("/v1/sales/{}", draft.id)).await,
    ] {
        let expected = (nowhere.status, nowhere.json["detail"].clone());
        assert_eq!((answer.status, answer.json["detail"].clone()), expected, "a draft was shown");
    }
    let mut later = crate::support::sale(&format!("{}later", world.name), 1, 1);
    later.window.opens_at = Millis::now().plus(Duration::from_secs(3_600));
    world.open_sale(&running.parts, &later).await;
    let shown = ada.get(&format!("/v1/sales/{}", later.id)).await;
    assert_eq!(shown.status, 200, "an opened sale is shown before its window begins: {}", shown.text);
    let early = ada.post(&format!("/v1/sales/{}/orders", later.id), &[], "").await;
    assert_eq!((early.status, early.code()), (409, "sale_not_open"));
    assert!(early.headers.contains_key("retry-after") && early.json["opens_at"].is_string());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_controls_a_sale_and_buyers_see_it() {
    let world = World::new(Database::Sqlite).await;
    let running = world.running().await;
    let admin = Buyer::operator(&running, OperatorRole::Admin);
    let ada = Buyer::of(&running, "ada");
    let sale = world.name.clone();
    let body = format!(
        r#"{{"sale_id":"{sale}","name":"Shoes","items":[{{"sku":"shoe","stock":10}},{{"sku":"bag","stock":0}}]}}"#
    );
    let created = admin.post("/v1/admin/sales", &[], &body).await;
    assert_eq!((created.status, created.json["state"].as_str()), (201, Some("draft")), "{}", created.text);
    let again = admin.post("/v1/admin/sales", &[], &body).await;
    assert_eq!((again.status, again.code()), (409, "sale_exists"));
    let act = async |act: &str| admin.post(&format!("/v1/admin/sales/{sale}:{act}"), &[], "").await;
    let too_early = act("pause").await;
    assert_eq!((too_early.status, too_early.code()), (409, "invalid_transition"));

    let opened = act("open").await;
    assert_eq!((opened.status, opened.json["state"].as_str()), (200, Some("open")), "{}", opened.text);
    assert_eq!(act("open").await.status, 200, "opening is idempotent");
    let seen = until("the front sees it", Duration::from_secs(10), async || {
        Some(ada.get(&format!("/v1/sales/{sale}")).await).filter(|answer| answer.json["state"] == "open")
    })
    .await;
    assert_eq!(
        seen.json["items"],
        serde_json::json!([{"sku":"bag","availability":"gone"},{"sku":"shoe","availability":"plenty"}])
    );
    let buy = async |body: &str| ada.post(&format!("/v1/sales/{sale}/orders"), &[], body).await;
    assert_eq!(buy("").await.code(), "malformed", "the sale has two items, and the order names none");

    act("pause").await;
    let paused = buy(r#"{"sku":"shoe"}"#).await;
    assert_eq!((paused.status, paused.code()), (503, "sale_paused"));
    assert!(paused.headers.contains_key("retry-after"));
    act("resume").await;
    assert_eq!(buy(r#"{"sku":"shoe"}"#).await.status, 202);
    act("close").await;
    let closed =
        Buyer::of(&running, "bob").post(&format!("/v1/sales/{sale}/orders"), &[], r#"{"sku":"shoe"}"#).await;
    assert_eq!((closed.status, closed.code()), (410, "sale_closed"));
    assert_eq!(act("open").await.code(), "invalid_transition", "a closed sale stays closed");
    assert_eq!(act("explode").await.code(), "not_found");

    let books = until("the order has its row", Duration::from_secs(20), async || {
        Some(admin.get(&format!("/v1/admin/sales/{sale}/audit")).await)
            .filter(|books| books.json["at_rest"] == true)
    })
    .await;
    assert_eq!(books.json["balances"], true, "{}", books.text);
    assert_eq!(books.json["live_orders"], 1);
    let listed = admin.get("/v1/admin/sales").await;
    assert_eq!(listed.json["sales"][0]["sale_id"], sale.as_str());
    let orders = admin.get(&format!("/v1/admin/sales/{sale}/orders")).await;
    assert_eq!(orders.json["orders"][0]["user_id"], "ada");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_grants_only_its_own_rights() {
    let (_world, running, sale) = with_open_sale(1, 1).await;
    let pause = format!("/v1/admin/sales/{sale}:pause");
    let viewer = Buyer::operator(&running, OperatorRole::Viewer);
    assert_eq!(viewer.get(&format!("/v1/admin/sales/{sale}")).await.status, 200);
    assert_eq!(viewer.post(&pause, &[], "").await.code(), "forbidden");
    let operator = Buyer::operator(&running, OperatorRole::Operator);
    assert_eq!(operator.post(&pause, &[], "").await.status, 200);
    assert_eq!(operator.post("/v1/admin/sales", &[], "{}").await.code(), "forbidden");
    let buyer = Buyer { at: running.operations, ..Buyer::of(&running, "ada") };
    assert_eq!(buyer.get("/v1/admin/sales").await.code(), "unauthenticated");
    let bare = request(running.operations, "GET", "/v1/admin/sales", &[], b"").await;
    assert_eq!((bare.status, bare.code()), (401, "unauthenticated"));
    assert_eq!(bare.headers["www-authenticate"], "Bearer");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_and_metrics_cover_servers_and_sales() {
    let (_world, running, sale) = with_open_sale(1, 1).await;
    Buyer::of(&running, "ada").buy(&sale, "k").await;
    let get = async |path: &str| request(running.operations, "GET", path, &[], b"").await;
    assert_eq!(get("/livez").await.status, 200);
    let ready = until("ready", Duration::from_secs(20), async || {
        Some(get("/readyz").await).filter(|answer| answer.json["status"] == "ready")
    })
    .await;
    assert_eq!((ready.status, ready.json["dependencies"]["redis"]["up"].as_bool()), (200, Some(true)));
    until("the sale's gauges", Duration::from_secs(20), async || {
        let text = get("/metrics").await.text;
        (text.contains("doorbuster_front_accepted_total")
            && text.contains(&format!("doorbuster_outbox_orders{{sale=\"{sale}\"}}")))
        .then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn monitoring_has_an_address_without_the_admin_api() {
    let mut world = World::new(Database::Sqlite).await;
    world.set("operations.monitoring_listen=127.0.0.1:0");
    let running = world.running().await;
    let ask = async |path: &str| request(running.monitoring.unwrap(), "GET", path, &[], b"").await;
    until("it is ready", Duration::from_secs(30), async || {
        (ask("/readyz").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(ask("/livez").await.text, "alive\n");
    assert!(ask("/metrics").await.text.contains("# TYPE"));
    let mut admin = Buyer::operator(&running, OperatorRole::Admin);
    assert_eq!(admin.get("/v1/admin/sales").await.status, 200);
    admin.at = running.monitoring.unwrap();
    let answer = admin.get("/v1/admin/sales").await;
    assert_eq!((answer.status, answer.code()), (404, "not_found"), "{}", answer.text);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_broker_orders_are_accepted_with_durability_outbox() {
    let mut world = World::new(Database::Sqlite).await;
    world.parts().await;
    let broker = world.config().queue.url;
    world
        .set("queue.url=amqp://127.0.0.1:1")
        .set("sweep.grace_ms=200")
        .set("sweep.every_ms=100")
        .set("sweep.spacing_ms=300");
    let front = Running::start(&world.config(), Role::Front).await.expect("starts without a broker");
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&front.parts, &sale).await;
    world.vouch_for_redis(&sale).await;
    let ada = Buyer::of(&front, "ada");
    let accepted = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(
        (accepted.status, accepted.json["durability"].as_str()),
        (202, Some("outbox")),
        "{}",
        accepted.text
    );
    let repeat = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(
        (repeat.status, repeat.json["durability"].as_str()),
        (202, Some("outbox")),
        "a repeat claims no more than is true"
    );
    front.stop().await;

    // The front that accepted the order has stopped; another one, with a broker, publishes it in its sweep.
    world.set(&format!("queue.url={broker}"));
    let running = world.running().await;
    let path = format!("/v1/sales/{}/orders/{}?wait=10", sale.id, accepted.order_id());
    let ada = Buyer::of(&running, "ada");
    until("the swept order is confirmed", Duration::from_secs(30), async || {
        Some(ada.get(&path).await).filter(|answer| answer.json["status"] == "confirmed")
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broker_only_answers_outcome_unknown_without_a_confirm() {
    let mut world = World::new(Database::Sqlite).await;
    world.parts().await;
    world.set("queue.url=amqp://127.0.0.1:1").set("intake.durability=broker_only");
    let front = Running::start(&world.config(), Role::Front).await.expect("starts");
    let sale = sale(&world.name, 5, 1);
    world.open_sale(&front.parts, &sale).await;
    world.vouch_for_redis(&sale).await;
    let answer = Buyer::of(&front, "ada").buy(sale.id.as_str(), "k").await;
    assert_eq!((answer.status, answer.code()), (504, "outcome_unknown"));
    assert!(!answer.order_id().is_empty());
    front.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_nothing_is_taken_and_without_a_database_sales_continue() {
    let mut world = World::new(Database::Sqlite).await;
    // A Redis that has been compared needs no database to sell.
    let (parts, sale) = (world.parts().await, sale(&world.name, 5, 1));
    world.load(&parts.gate, &sale).await;
    world.set("database.url=postgres://nobody@127.0.0.1:1/none").set("database.timeout_ms=500");
    let running = Running::start(&world.config(), Role::Front).await.expect("starts without a database");
    let ada = Buyer::of(&running, "ada");
    let accepted = ada.buy(sale.id.as_str(), "k").await;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    let path = format!("/v1/sales/{}/orders", sale.id);
    assert_eq!(ada.get(&format!("{path}/{}", accepted.order_id())).await.json["status"], "accepted");
    let unknown = ada.get(&format!("{path}/01890000-0000-7000-8000-000000000000")).await;
    assert_eq!(
        (unknown.status, unknown.code()),
        (503, "status_unavailable"),
        "404 needs an answer from both gate and database"
    );
    running.stop().await;

    world.set("redis.url=redis://127.0.0.1:1").set("redis.timeout_ms=200");
    let running = Running::start(&world.config(), Role::Front).await.expect("starts without Redis");
    let answer = Buyer::of(&running, "ada").buy(sale.id.as_str(), "k").await;
    assert_eq!((answer.status, answer.code()), (503, "gate_unavailable"), "{}", answer.text);
    assert!(answer.headers.contains_key("retry-after"));
    until("not ready", Duration::from_secs(20), async || {
        Some(request(running.operations, "GET", "/readyz", &[], b"").await)
            .filter(|answer| answer.status == 503 && answer.json["status"] == "unavailable")
    })
    .await;
    running.stop().await;
}

/// Some of the orders are in flight and some have rows; each is in one page.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyers_orders_come_in_pages() {
    let (_world, running, sale) = with_open_sale(9, 9).await;
    let ada = Buyer::of(&running, "ada");
    let mut bought = Vec::new();
    for key in ["a", "b", "c", "d", "e"] {
        bought.push(ada.buy(&sale, key).await.order_id().to_owned());
    }
    let path = format!("/v1/sales/{sale}/orders/mine");
    let (mut read, mut sizes, mut after) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = ada.get(&format!("{path}?limit=2{after}")).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let orders = page.json["orders"].as_array().expect("a list");
        sizes.push(orders.len());
        read.extend(orders.iter().map(|order| order["order_id"].as_str().expect("an id").to_owned()));
        let Some(next) = page.json["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!((read, sizes), (bought, vec![2, 2, 1]));
    for wrong in ["limit=0", "limit=101", "limit=many", "after=me"] {
        let answer = ada.get(&format!("{path}?{wrong}")).await;
        assert_eq!((answer.status, answer.code()), (400, "malformed"), "{wrong}: {}", answer.text);
    }
    running.stop().await;
}
