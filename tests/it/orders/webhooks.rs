//! What happens to orders, as the endpoints of a shop are given it.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::StatusCode;
use doorbuster::domain::Sale;
use doorbuster::front::Role;
use doorbuster::process::Running;
use futures_util::future::join_all;
use serde_json::json;

use super::payments::{SECRET, event};
use crate::faults::stalls::Session;
use crate::support::{Answer, Buyer, Database, Manner, Receiver, World, at_rest, run, sale, until};

const LONG: Duration = Duration::from_secs(60);

/// A world whose endpoints may be on this host.
pub async fn world(database: Database) -> World {
    let mut world = World::new(database).await;
    world.set("webhooks.allow_private=true").set("maintenance.every_ms=200");
    world.set(&format!("payments.secrets=acme {SECRET}"));
    world.parts().await;
    world
}

pub async fn open(world: &World) -> (Running, Sale) {
    open_with(world, 100).await
}

async fn open_with(world: &World, stock: i64) -> (Running, Sale) {
    let running = world.running().await;
    let sale = sale(&world.name, stock, 1);
    world.open_sale(&running.parts, &sale).await;
    (running, sale)
}

/// Adds an endpoint for events of orders, and returns its secret.
pub async fn add(world: &World, id: &str, receiver: &Receiver) -> String {
    add_for(world, id, receiver, "order.*").await
}

async fn add_for(world: &World, id: &str, receiver: &Receiver, events: &str) -> String {
    let add = ["webhook", "add", id, &receiver.url(), "--events", events, "--output", "json"];
    let (code, out, err) = run(Some(world), &add).await;
    assert_eq!(code, 0, "{out}{err}");
    let added: serde_json::Value = serde_json::from_str(&out).unwrap();
    added["secret"].as_str().unwrap().to_owned()
}

pub async fn buy(running: &Running, sale: &Sale, user: &str) -> Answer {
    let answer = Buyer::of(running, user).buy(sale.id.as_str(), "k").await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    answer
}

pub async fn has_kinds(receiver: &Receiver, order: &str, kinds: &[&str]) {
    until(&format!("{order} has {kinds:?}"), LONG, async || {
        (receiver.kinds_of(order) == kinds).then_some(())
    })
    .await;
}

/// What an operator sees once it says this.
pub async fn listed(world: &World, says: &str) -> String {
    until(says, LONG, async || {
        let (_, out, _) = run(Some(world), &["webhook", "list"]).await;
        out.contains(says).then_some(out)
    })
    .await
}

async fn pay(running: &Running, sale: &Sale, order: &str) {
    let paid = event(&format!("evt-{order}"), "payment.succeeded", sale, order);
    let answer = until("the payment is taken", LONG, async || Some(paid.send(running).await)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

async fn a_killed_receiver_gets_everything(database: Database) {
    let world = world(database).await;
    let mut receiver = Receiver::start().await;
    let secret = add(&world, "shop", &receiver).await;
    let (running, sale) = open(&world).await;
    let order = buy(&running, &sale, "ada").await;
    has_kinds(&receiver, order.order_id(), &["order.confirmed"]).await;
    let first = receiver.delivered().remove(0);
    assert!(first.is_signed_with(&secret), "{first:?}");
    assert_eq!(first.id, format!("{}.1", order.order_id()));
    let data = &first.json["data"];
    assert_eq!(
        (&data["user_id"], &data["status"], &data["quantity"]),
        (&"ada".into(), &"confirmed".into(), &1.into())
    );

    // It takes one more, and dies before it answers.
    receiver.behave(Manner::InVain);
    let mut paid = vec![buy(&running, &sale, "user0").await.order_id().to_owned()];
    has_kinds(&receiver, &paid[0], &["order.confirmed"]).await;
    receiver.kill().await;
    for nth in 1..20 {
        let order = buy(&running, &sale, &format!("user{nth}")).await;
        paid.push(order.order_id().to_owned());
    }
    at_rest(&running, &sale).await;
    for order in &paid {
        pay(&running, &sale, order).await;
    }
    let failing = async || {
        let (code, out, err) = run(Some(&world), &["webhook", "list"]).await;
        assert_eq!(code, 0, "{out}{err}");
        (out.contains("fails since") && out.contains("last error: ")).then_some(())
    };
    until("the operator sees it", LONG, failing).await;
    receiver.behave(Manner::Takes);
    receiver.start_again().await;
    for order in &paid {
        has_kinds(&receiver, order, &["order.confirmed", "order.paid"]).await;
    }
    let (all, mut ids) = (receiver.delivered().len(), receiver.delivered());
    ids.sort_by(|one, other| one.id.cmp(&other.id));
    ids.dedup_by(|one, other| one.id == other.id);
    println!("{all} deliveries of {} events", ids.len());
    assert_eq!(ids.len(), 41);
    assert!(all > 41, "it had taken one whose answer was lost");
    for one in receiver.delivered() {
        let first = ids.iter().find(|first| first.id == one.id).unwrap();
        assert_eq!(first.body, one.body, "the same event is the same again");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_receiver_gets_everything_later_on_sqlite() {
    a_killed_receiver_gets_everything(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_receiver_gets_everything_later_on_postgres() {
    a_killed_receiver_gets_everything(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_receiver_gets_everything_later_on_mariadb() {
    a_killed_receiver_gets_everything(Database::Mariadb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_state_waits_for_the_one_before_it() {
    let world = world(Database::Sqlite).await;
    let receiver = Receiver::start().await;
    receiver.behave(Manner::Refuses("order.confirmed"));
    add(&world, "shop", &receiver).await;
    let (running, sale) = open(&world).await;
    let order = buy(&running, &sale, "ada").await;
    at_rest(&running, &sale).await;
    pay(&running, &sale, order.order_id()).await;
    // The second try comes after five seconds, when the payment has long been written down.
    until("it has been tried twice", LONG, async || (receiver.refused() >= 2).then_some(())).await;
    assert!(receiver.delivered().is_empty(), "{:?}", receiver.delivered());
    receiver.behave(Manner::Takes);
    assert_eq!(run(Some(&world), &["webhook", "redeliver", "shop"]).await.0, 0);
    has_kinds(&receiver, order.order_id(), &["order.confirmed", "order.paid"]).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_never_answers_holds_nobody_up() {
    let world = world(Database::Sqlite).await;
    let (silent, good) = (Receiver::start().await, Receiver::start().await);
    silent.behave(Manner::Never);
    add(&world, "silent", &silent).await;
    add(&world, "good", &good).await;
    let (running, sale) = open(&world).await;
    for nth in 0..20 {
        let order = buy(&running, &sale, &format!("user{nth}")).await;
        // Its first request to the other one has ten seconds.
        let within = Duration::from_secs(8);
        until("the other receiver gets it", within, async || {
            (!good.kinds_of(order.order_id()).is_empty()).then_some(())
        })
        .await;
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_redirect_is_followed_and_no_long_answer_read() {
    let world = world(Database::Sqlite).await;
    let (redirects, talks) = (Receiver::start().await, Receiver::start().await);
    redirects.behave(Manner::Redirects);
    talks.behave(Manner::TalksOn);
    add(&world, "redirects", &redirects).await;
    add(&world, "talks", &talks).await;
    let (running, sale) = open(&world).await;
    let order = buy(&running, &sale, "ada").await;
    has_kinds(&talks, order.order_id(), &["order.confirmed"]).await;
    let twice = until("it is tried again", LONG, async || {
        let delivered = redirects.delivered();
        (delivered.len() >= 2).then_some(delivered)
    })
    .await;
    assert!(twice.iter().all(|delivered| delivered.path == "/hooks"), "{twice:?}");
    assert_eq!(talks.delivered().len(), 1, "it answered 200");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_to_a_sale_comes_as_well() {
    let mut world = world(Database::Postgres).await;
    world.set("audit.every_s=1").set("audit.pause_sale=false");
    let receiver = Receiver::start().await;
    let secret = add_for(&world, "shop", &receiver, "sale.*").await;
    let (running, sale) = open_with(&world, 2).await;
    let id = sale.id.as_str();
    let kinds = || {
        let mut ids = BTreeSet::new();
        let news = receiver.delivered().into_iter().filter(|delivered| ids.insert(delivered.id.clone()));
        news.map(|delivered| delivered.kind().to_owned()).collect::<Vec<_>>()
    };
    let mut wanted = Vec::new();
    let mut comes = async |kind: &'static str| {
        wanted.push(kind);
        until(kind, LONG, async || (kinds() == wanted).then_some(())).await;
    };
    comes("sale.opened").await;
    for user in ["ada", "bob"] {
        buy(&running, &sale, user).await;
    }
    comes("sale.sold_out").await;
    for (verb, kind) in [("pause", "sale.paused"), ("resume", "sale.resumed")] {
        assert_eq!(run(Some(&world), &["sale", verb, id]).await.0, 0);
        comes(kind).await;
    }
    at_rest(&running, &sale).await;
    Session::open(&world).await.execute(format!("UPDATE items SET sold = 1 WHERE sale_id = '{id}'")).await;
    comes("sale.books_broken").await;
    Session::open(&world).await.execute(format!("UPDATE items SET sold = 2 WHERE sale_id = '{id}'")).await;
    assert_eq!(run(Some(&world), &["sale", "close", id]).await.0, 0);
    comes("sale.closed").await;
    let last = receiver.delivered().pop().unwrap();
    assert!(last.is_signed_with(&secret) && last.id.starts_with(&format!("{id}.closed.")), "{last:?}");
    assert_eq!(last.json["data"], json!({"sale_id": id, "status": "closed"}));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acts_on_an_endpoint_count_while_much_is_due() {
    const ORDERS: usize = 600;
    let world = world(Database::Sqlite).await;
    let receiver = Receiver::start().await;
    // Sixteen at the same time: all of them take eleven seconds, without a moment in which nothing is due.
    receiver.behave(Manner::Slowly(Duration::from_millis(300)));
    let old = add(&world, "shop", &receiver).await;
    let (running, sale) = open_with(&world, ORDERS as i64).await;
    join_all((0..ORDERS).map(|nth| {
        let (running, sale) = (&running, &sale);
        async move { buy(running, sale, &format!("user{nth}")).await }
    }))
    .await;
    until("the first come", LONG, async || (!receiver.delivered().is_empty()).then_some(())).await;
    let (code, out, err) = run(Some(&world), &["webhook", "rotate", "shop"]).await;
    let new =
        out.lines().find(|line| line.starts_with("whsec_")).unwrap_or_else(|| panic!("{code} {out}{err}"));
    let signed = until("the new secret counts", LONG, async || {
        receiver.delivered().into_iter().find(|delivered| delivered.is_signed_with(new))
    })
    .await;
    assert!(signed.is_signed_with(&old), "{signed:?}");

    assert_eq!(run(Some(&world), &["webhook", "off", "shop"]).await.0, 0);
    let mut before = 0;
    let came = until("nothing comes any more", LONG, async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = receiver.delivered().len();
        (std::mem::replace(&mut before, now) == now).then_some(now)
    })
    .await;
    println!("{came} of {ORDERS} came before it was off");
    assert!(came < ORDERS, "{came}");
    assert_eq!(run(Some(&world), &["webhook", "on", "shop"]).await.0, 0);
    receiver.behave(Manner::Takes);
    let ids = || receiver.delivered().into_iter().map(|delivered| delivered.id).collect::<BTreeSet<_>>();
    until("all come", LONG, async || (ids().len() == ORDERS).then_some(())).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_about_endpoints_are_explained() {
    let world = World::new(Database::Sqlite).await;
    world.parts().await;
    for (url, why) in [
        ("https://127.0.0.1/hooks", "webhooks.allow_private"),
        ("https://[::ffff:10.0.0.1]/hooks", "webhooks.allow_private"),
        ("http://shop.example/hooks", "https:"),
        ("https://ada:pw@shop.example/", "name or password"),
        ("shop.example", "a URL such as"),
    ] {
        let (code, out, err) = run(Some(&world), &["webhook", "add", "shop", url]).await;
        assert!(code == 2 && err.contains(why), "{url}: {code} {out}{err}");
    }
    let (code, _, err) = run(Some(&world), &["webhook", "add", "Shop No 1", "https://shop.example/"]).await;
    assert!(code == 2 && err.contains("the id of an endpoint must be"), "{code} {err}");
    let add = ["webhook", "add", "shop", "https://shop.example/hooks"];
    let (code, out, err) = run(Some(&world), &add).await;
    assert!(code == 0 && out.contains("whsec_"), "{code} {out}{err}");
    let (code, _, err) = run(Some(&world), &add).await;
    assert!(code == 2 && err.contains("there is an endpoint shop"), "{code} {err}");
    for verb in ["remove", "on", "off", "rotate", "redeliver"] {
        let (code, _, err) = run(Some(&world), &["webhook", verb, "other"]).await;
        assert!(code == 2 && err.contains("there is no endpoint other"), "{verb}: {code} {err}");
    }
    let (code, out, _) = run(Some(&world), &["webhook", "list", "--output", "json"]).await;
    assert!(code == 0 && !out.contains("whsec_") && out.contains("\"is_on\":true"), "{code} {out}");
    assert_eq!(run(Some(&world), &["webhook", "remove", "shop"]).await.0, 0);
    let (_, out, _) = run(Some(&world), &["webhook", "list"]).await;
    assert!(out.contains("there are no endpoints"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_sees_to_endpoints_as_well() {
    let world = world(Database::Sqlite).await;
    let receiver = Receiver::start().await;
    receiver.behave(Manner::Answers(StatusCode::INTERNAL_SERVER_ERROR));
    let (running, sale) = open(&world).await;
    let [viewer, operator, admin] =
        [Role::Viewer, Role::Operator, Role::Admin].map(|role| Buyer::operator(&running, role));
    let post = async |who: &Buyer, verb: &str, body: serde_json::Value| {
        who.post(&format!("/v1/admin/webhooks:{verb}"), &[], &body.to_string()).await
    };
    let new = json!({"id": "shop", "url": receiver.url()});
    let answer = post(&operator, "add", new.clone()).await;
    assert_eq!((answer.status, answer.code()), (403, "forbidden"), "{}", answer.text);
    let answer = post(&admin, "add", new.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let secret = answer.json["secret"].as_str().unwrap().to_owned();
    let answer = post(&admin, "add", new).await;
    assert_eq!((answer.status, answer.code()), (409, "endpoint_exists"), "{}", answer.text);
    let answer = post(&admin, "add", json!({"id": "other", "url": "ftp://shop.example"})).await;
    assert_eq!((answer.status, answer.code()), (422, "invalid_endpoint"), "{}", answer.text);

    // What happens in the first seconds is not delivered.
    let mut nth = 0;
    let order = until("the processes follow, and it fails", LONG, async || {
        nth += 1;
        let order = buy(&running, &sale, &format!("user{nth}")).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let answer = viewer.get("/v1/admin/webhooks").await;
        assert!(!answer.text.contains("whsec_"), "{}", answer.text);
        let endpoint = &answer.json["endpoints"][0];
        let waits = endpoint["waiting"].as_i64().is_some_and(|waiting| waiting > 0);
        (waits && endpoint["failing_since"].is_string()).then_some(order)
    })
    .await;
    receiver.behave(Manner::Takes);
    let shop = json!({"id": "shop"});
    assert_eq!(post(&viewer, "redeliver", shop.clone()).await.status, 403);
    assert_eq!(post(&operator, "redeliver", shop.clone()).await.status, 200);
    has_kinds(&receiver, order.order_id(), &["order.confirmed"]).await;
    assert!(receiver.delivered()[0].is_signed_with(&secret));

    let answer = post(&admin, "rotate", shop.clone()).await;
    assert!(answer.json["secret"].as_str().is_some_and(|new| new != secret), "{}", answer.text);
    assert_eq!(post(&admin, "rotate", shop.clone()).await.code(), "act_refused");
    assert_eq!(post(&admin, "retire", shop.clone()).await.json["endpoints"][0]["secrets"], 1);
    let answer = post(&operator, "off", shop.clone()).await;
    assert_eq!(answer.json["endpoints"][0]["is_on"], false, "{}", answer.text);
    assert_eq!(post(&operator, "on", shop.clone()).await.json["endpoints"][0]["is_on"], true);
    let answer = post(&operator, "events", json!({"id": "shop", "events": ["order.paid"]})).await;
    assert_eq!(answer.json["endpoints"][0]["events"], json!(["order.paid"]), "{}", answer.text);
    assert_eq!(post(&admin, "remove", shop.clone()).await.json["endpoints"], json!([]));
    let answer = post(&operator, "on", shop).await;
    assert_eq!((answer.status, answer.code()), (404, "endpoint_not_found"), "{}", answer.text);
    running.stop().await;
}
